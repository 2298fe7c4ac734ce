// The processor's vector registers, as wide as the compiler was told they are.

#pragma once

#include <cstdint>
#include <type_traits>

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;  // floats in a register
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4)));
typedef int32_t Mask __attribute__((vector_size(WIDTH * 4), aligned(4)));  // of a comparison: all ones, or zero
typedef uint8_t Bytes __attribute__((vector_size(WIDTH), aligned(1)));

inline Vector load(const float *from) { return *reinterpret_cast<const Vector *>(from); }
inline void store(float *to, Vector value) { *reinterpret_cast<Vector *>(to) = value; }
inline void store(uint8_t *to, Mask small) { *reinterpret_cast<Bytes *>(to) = __builtin_convertvector(small, Bytes); }

// Loaded once and kept in a register: a compiler that would rather name the memory in each multiplication loads
// it each time.
inline Vector held(const float *from) {
    Vector value = load(from);
#if defined(__x86_64__)
    asm("" : "+x"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#endif
    return value;
}
inline Vector all(float value) { return value - Vector{}; }

// How many sums are held at once: with the operands they fill the registers, so that the multiplications, not
// the loads, are what takes the time.
constexpr int TILE = 6;  // channels, or rows of a matrix
constexpr int PIECE = REGISTERS == 32 ? 4 : 2;  // vectors of lanes, or of columns, for each row of the tile

// Calls body(lane, constant number of vectors) for pieces of the lanes: PIECE vectors, then half as many ...
template <int LARGEST = PIECE, class Body> inline void pieces(int lanes, Body body, int lane = 0) {
    for (; lane + LARGEST * WIDTH <= lanes; lane += LARGEST * WIDTH) body(lane, std::integral_constant<int, LARGEST>{});
    if constexpr (LARGEST > 1) pieces<LARGEST / 2>(lanes, body, lane);
}

// Calls body with the constant that `count` is, from 1 to LARGEST.
template <int LARGEST, class Body> inline void constant(int count, Body body) {
    if constexpr (LARGEST >= 1) {
        if (count == LARGEST) body(std::integral_constant<int, LARGEST>{});
        else constant<LARGEST - 1>(count, body);
    }
}

}  // namespace
