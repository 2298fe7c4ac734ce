// Convolutions over a text's embedded tokens, ReLU and the maximum over time as one pass, forward and backward.
//
// Of all windows only the one with the maximum gets a gradient, so going backward costs next to nothing; behind
// a text's end one window of padding stands for all others. Sums run in one fixed order.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "registers.hpp"

namespace {

constexpr int VECTORS = WIDTH == 16 ? 4 : 2;  // registers of outputs, and windows, whose sums are held at once
constexpr int WINDOWS = WIDTH == 16 ? 6 : 4;

struct Texts {
    int batch, length;  // tokens (batch, length), the table's `padding` behind each text's end
    int padding;
    int dimensions;  // of a token's vector
    int outputs, width;  // of the convolution, in channels and tokens
    int terms() const { return width * dimensions; }
    int filled() const { return (outputs + WIDTH - 1) / WIDTH * WIDTH; }
};

// The vectors of one text and of a window of padding behind it, as far as the text's row goes.
struct Rows {
    std::vector<float> values;
    int count = 0;

    void take(const Texts &s, const int32_t *tokens, const float *table) {
        int end = s.length;
        while (end > 0 && tokens[end - 1] == s.padding) end--;
        count = std::min(s.length, end + s.width);
        values.resize(size_t(count) * s.dimensions);
        for (int t = 0; t < count; t++)
            std::memcpy(&values[size_t(t) * s.dimensions], table + size_t(tokens[t]) * s.dimensions,
                        sizeof(float) * s.dimensions);
    }
};

// COUNT neighbouring windows, the first of them number `first`, of HELD registers of outputs.
template <int HELD, int COUNT>
void windows(const Texts &s, const float *rows, const float *weights, const float *bias, int first, float *best,
             int32_t *where) {
    const int terms = s.terms(), step = s.dimensions, filled = s.filled();
    Vector sums[COUNT][HELD];
    for (int w = 0; w < COUNT; w++)
        for (int v = 0; v < HELD; v++) sums[w][v] = load(bias + v * WIDTH);
    for (int k = 0; k < terms; k++, weights += filled) {
        Vector kernels[HELD];
        for (int v = 0; v < HELD; v++) kernels[v] = load(weights + v * WIDTH);
        for (int w = 0; w < COUNT; w++) {
            const Vector x = all(rows[w * step + k]);
            for (int v = 0; v < HELD; v++) sums[w][v] += kernels[v] * x;
        }
    }
    for (int w = 0; w < COUNT; w++) {
        float now[HELD * WIDTH];
        for (int v = 0; v < HELD; v++) store(now + v * WIDTH, sums[w][v]);
        for (int l = 0; l < HELD * WIDTH; l++) {
            const bool larger = now[l] > best[l] || now[l] != now[l];  // what is no number stays none
            best[l] = larger ? now[l] : best[l];
            where[l] = larger ? first + w : where[l];
        }
    }
}

// Weights (outputs, dimensions, width) as (outputs, width, dimensions), or back.
void turned(const Texts &s, const float *from, float *to, bool back) {
    for (int o = 0; o < s.outputs; o++, from += s.terms(), to += s.terms())
        for (int d = 0; d < s.dimensions; d++)
            for (int w = 0; w < s.width; w++) {
                const int plain = d * s.width + w, ours = w * s.dimensions + d;
                to[back ? plain : ours] = from[back ? ours : plain];
            }
}

}  // namespace

extern "C" {

// best: (batch, outputs), after ReLU; where: its window, -1 where ReLU lets nothing through.
void maxima_forward(const Texts *shape, const int32_t *tokens, const float *table, const float *weights,
                    const float *bias, float *best, int32_t *where) {
    const Texts &s = *shape;
    const int terms = s.terms(), filled = s.filled();
    std::vector<float> ordered(size_t(s.outputs) * terms), kernels(size_t(terms) * filled), biases(filled);
    turned(s, weights, ordered.data(), false);
    for (int o = 0; o < s.outputs; o++)
        for (int k = 0; k < terms; k++) kernels[size_t(k) * filled + o] = ordered[size_t(o) * terms + k];
    std::copy(bias, bias + s.outputs, biases.begin());
    Rows rows;
    std::vector<float> largest(filled);
    std::vector<int32_t> at(filled);
    for (int b = 0; b < s.batch; b++) {
        rows.take(s, tokens + size_t(b) * s.length, table);
        std::fill(largest.begin(), largest.end(), 0.0f);  // ReLU: nothing below it counts
        std::fill(at.begin(), at.end(), -1);
        const int count = rows.count - s.width + 1;
        for (int o = 0; o < filled; o += VECTORS * WIDTH)
            constant<VECTORS>(std::min(VECTORS, (filled - o) / WIDTH), [&](auto vectors) {
                for (int first = 0; first < count; first += WINDOWS)
                    constant<WINDOWS>(std::min(WINDOWS, count - first), [&](auto some) {
                        windows<vectors(), some()>(s, &rows.values[size_t(first) * s.dimensions], &kernels[o],
                                                   &biases[o], first, &largest[o], &at[o]);
                    });
            });
        std::copy(largest.begin(), largest.begin() + s.outputs, best + size_t(b) * s.outputs);
        std::copy(at.begin(), at.begin() + s.outputs, where + size_t(b) * s.outputs);
    }
}

// Adds to table_gradient, all but the padding's row; sets the others.
void maxima_backward(const Texts *shape, const int32_t *tokens, const float *table, const float *weights,
                     const float *gradient, const int32_t *where, float *table_gradient, float *weight_gradient,
                     float *bias_gradient) {
    const Texts &s = *shape;
    const int terms = s.terms();
    std::vector<float> ordered(size_t(s.outputs) * terms), kernels(ordered.size()), of_rows;
    turned(s, weights, ordered.data(), false);
    std::fill(bias_gradient, bias_gradient + s.outputs, 0.0f);
    Rows rows;
    for (int b = 0; b < s.batch; b++, tokens += s.length, gradient += s.outputs, where += s.outputs) {
        rows.take(s, tokens, table);
        of_rows.assign(rows.values.size(), 0.0f);
        for (int o = 0; o < s.outputs; o++) {
            if (where[o] < 0) continue;
            const float g = gradient[o];
            const size_t start = size_t(where[o]) * s.dimensions;
            const float *x = &rows.values[start], *w = &ordered[size_t(o) * terms];
            float *to_x = &of_rows[start], *to_w = &kernels[size_t(o) * terms];
            bias_gradient[o] += g;
            for (int k = 0; k < terms; k++) {
                to_w[k] += g * x[k];
                to_x[k] += g * w[k];
            }
        }
        for (int t = 0; t < rows.count; t++) {
            if (tokens[t] == s.padding) continue;
            float *to = table_gradient + size_t(tokens[t]) * s.dimensions;
            const float *from = &of_rows[size_t(t) * s.dimensions];
            for (int d = 0; d < s.dimensions; d++) to[d] += from[d];
        }
    }
    turned(s, kernels.data(), weight_gradient, true);
}
}
