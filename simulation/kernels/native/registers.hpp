// The processor's vector registers, as wide as the compiler was told they are.

#pragma once

#include <type_traits>

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;  // floats in a register
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4)));

inline Vector load(const float *from) { return *reinterpret_cast<const Vector *>(from); }
inline void store(float *to, Vector value) { *reinterpret_cast<Vector *>(to) = value; }
inline Vector all(float value) { return value - Vector{}; }

// Calls body with the constant that `count` is, from 1 to LARGEST.
template <int LARGEST, class Body> inline void constant(int count, Body body) {
    if constexpr (LARGEST >= 1) {
        if (count == LARGEST) body(std::integral_constant<int, LARGEST>{});
        else constant<LARGEST - 1>(count, body);
    }
}

}  // namespace
