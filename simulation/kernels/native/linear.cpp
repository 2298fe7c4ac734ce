// Linear layers, with ReLU or without, forward and backward, of features with the batch innermost in memory,
// (features, lanes): what the convolutions give, flattened.
//
// Three matrix products, each of them tiles of sums that fill the registers: numbers of one matrix, one at a
// time, times vectors of the other, which are packed side by side before. Sums run in one fixed order.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layers.hpp"
#include "registers.hpp"

namespace {

// Numbers (rows, terms), so far apart in memory.
struct Numbers {
    const float *first;
    size_t row, term;
};

// ROWS x VECTORS registers of the product of numbers and of `packed`, (terms, VECTORS registers).
template <int ROWS, int VECTORS>
[[gnu::noinline]] void tile(const Numbers &numbers, int terms, const float *packed, Vector (&result)[ROWS][VECTORS]) {
    const size_t row = numbers.row, term = numbers.term;
    const float *at = numbers.first;
    Vector sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = result[r][v];
    for (int k = 0; k < terms; k++, at += term, packed += VECTORS * WIDTH) {
        Vector x[VECTORS];
        for (int v = 0; v < VECTORS; v++) x[v] = held(packed + v * WIDTH);
        for (int r = 0; r < ROWS; r++) {
            const Vector one = all(at[r * row]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] += one * x[v];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) result[r][v] = sums[r][v];
}

// The product of numbers (rows, terms) and of a matrix (terms, columns); columns are whole registers.
// pack(first column, how many, to) writes so many columns of all terms side by side, begin(row) is what the
// sums of a row begin with, take(row, column, sum) gets a register of the product.
template <class Pack, class Begin, class Take>
void multiply(const Numbers &numbers, int rows, int terms, int columns, Pack pack, Begin begin, Take take) {
    std::vector<float> packed(size_t(terms) * PIECE * WIDTH);
    pieces(columns, [&](int column, auto vectors) {
        pack(column, vectors() * WIDTH, packed.data());
        for (int row = 0; row < rows; row += TILE)
            constant<TILE>(std::min(TILE, rows - row), [&](auto some) {
                Vector sums[some()][vectors()];
                for (int r = 0; r < some(); r++)
                    for (int v = 0; v < vectors(); v++) sums[r][v] = all(begin(row + r));
                const Numbers from{numbers.first + row * numbers.row, numbers.row, numbers.term};
                tile<some(), vectors()>(from, terms, packed.data(), sums);
                for (int r = 0; r < some(); r++)
                    for (int v = 0; v < vectors(); v++) take(row + r, column + v * WIDTH, sums[r][v]);
            });
    });
}

// Packs columns of a matrix (terms, lanes).
auto columns_of(const float *matrix, int terms, int lanes) {
    return [=](int column, int number, float *to) {
        for (int k = 0; k < terms; k++, to += number) std::copy_n(matrix + size_t(k) * lanes + column, number, to);
    };
}

// The values where `by` is positive, or no number; 0 elsewhere.
Vector rectified(Vector values, Vector by) { return by <= 0 ? Vector{} : values; }

}  // namespace

extern "C" {

// in: (inputs, lanes); weights: (outputs, inputs); out: (outputs, lanes).
void linear_forward(const Linear *shape, const float *in, const float *weights, const float *bias, float *out) {
    const Linear &s = *shape;
    multiply({weights, size_t(s.inputs), 1}, s.outputs, s.inputs, s.lanes, columns_of(in, s.inputs, s.lanes),
             [&](int row) { return bias[row]; },
             [&](int row, int lane, Vector sum) {
                 store(out + size_t(row) * s.lanes + lane, s.rectified ? rectified(sum, sum) : sum);
             });
}

// out: what forward gave; gradient: of it. in_gradient may be null: not wanted.
void linear_backward(const Linear *shape, const float *in, const float *weights, const float *out,
                     const float *gradient, float *weight_gradient, float *bias_gradient, float *in_gradient) {
    const Linear &s = *shape;
    const size_t lanes = s.lanes;
    std::vector<float> passed(gradient, gradient + s.outputs * lanes);
    for (size_t k = 0; s.rectified && k < passed.size(); k += WIDTH)
        store(&passed[k], rectified(load(gradient + k), load(out + k)));
    for (int o = 0; o < s.outputs; o++) {
        Vector sum{};
        for (size_t l = 0; l < lanes; l += WIDTH) sum += load(&passed[o * lanes + l]);
        bias_gradient[o] = 0;
        for (int l = 0; l < WIDTH; l++) bias_gradient[o] += sum[l];
    }
    const auto pack_turned = [&](int input, int number, float *to) {
        for (size_t l = 0; l < lanes; l++)
            for (int i = 0; i < number; i++, to++) *to = input + i < s.inputs ? in[(input + i) * lanes + l] : 0;
    };
    const auto nothing = [](int) { return 0.0f; };
    const int filled = (s.inputs + WIDTH - 1) / WIDTH * WIDTH;
    multiply({passed.data(), lanes, 1}, s.outputs, s.lanes, filled, pack_turned, nothing,
             [&](int row, int input, Vector sum) {
                 float *to = weight_gradient + size_t(row) * s.inputs + input;
                 if (input + WIDTH <= s.inputs) store(to, sum);
                 else
                     for (int i = 0; input + i < s.inputs; i++) to[i] = sum[i];
             });
    if (in_gradient)
        multiply({weights, 1, size_t(s.inputs)}, s.inputs, s.outputs, s.lanes,
                 columns_of(passed.data(), s.outputs, s.lanes), nothing,
                 [&](int row, int lane, Vector sum) { store(in_gradient + row * lanes + lane, sum); });
}
}
