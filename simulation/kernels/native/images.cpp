// A convolution (stride 1, no padding), its bias, ReLU and 2x2 max-pooling as one pass, forward and backward.
//
// Tensors of images are float32 (channels, height, width, lanes), contiguous: the batch is innermost and a
// multiple of 16, so that a few channels fill the vector registers that a small network's channels alone do
// not. Sums run in one fixed order: equal input gives equal bits on one type of processor.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "registers.hpp"

namespace {

// How many sums are held at once: with the operands they fill the registers, so that the multiplications, not
// the loads, are what takes the time.
constexpr int TILE = 6;  // channels
constexpr int PIECE = REGISTERS == 32 ? 4 : 2;  // vectors of lanes, each for every channel of the tile
constexpr int DEEP = REGISTERS == 32 ? 4 : 2;  // channels of gradients of kernels, each with TAPS of them
constexpr int TAPS = 5;

struct Shape {
    int inputs, height, width;  // what comes in
    int outputs, kernel_height, kernel_width;
    int lanes;
    int high() const { return height - kernel_height + 1; }  // what the convolution gives, before pooling
    int wide() const { return width - kernel_width + 1; }
};

// Calls body(lane, constant number of vectors) for pieces of the lanes: PIECE vectors, then half as many ...
template <int LARGEST = PIECE, class Body> inline void pieces(int lanes, Body body, int lane = 0) {
    for (; lane + LARGEST * WIDTH <= lanes; lane += LARGEST * WIDTH) body(lane, std::integral_constant<int, LARGEST>{});
    if constexpr (LARGEST > 1) pieces<LARGEST / 2>(lanes, body, lane);
}

// ---------------------------------------------------------------- forward

// One pixel of CHANNELS outputs: bias, and the sum over inputs and taps. `weights` are (inputs, taps, all
// outputs). Not inlined: the sums need all registers, and a caller that holds others pushes some to memory.
template <int CHANNELS, int VECTORS>
[[gnu::noinline]] void pixel(const Shape &s, const float *in, const float *weights, const float *bias,
                             Vector (&result)[CHANNELS][VECTORS]) {
    const size_t row = size_t(s.width) * s.lanes, plane = row * s.height;
    const int inputs = s.inputs, high = s.kernel_height, wide = s.kernel_width, lanes = s.lanes, next = s.outputs;
    Vector sums[CHANNELS][VECTORS];
    for (int c = 0; c < CHANNELS; c++)
        for (int v = 0; v < VECTORS; v++) sums[c][v] = all(bias[c]);
    for (int i = 0; i < inputs; i++)
        for (int ky = 0; ky < high; ky++) {
            const float *at = in + i * plane + ky * row;
            for (int kx = 0; kx < wide; kx++, at += lanes, weights += next) {
                Vector x[VECTORS];
                for (int v = 0; v < VECTORS; v++) x[v] = held(at + v * WIDTH);
                for (int c = 0; c < CHANNELS; c++) {
                    const Vector w = all(weights[c]);
                    for (int v = 0; v < VECTORS; v++) sums[c][v] += w * x[v];
                }
            }
        }
    for (int c = 0; c < CHANNELS; c++)
        for (int v = 0; v < VECTORS; v++) result[c][v] = sums[c][v];
}

// The largest of a 2x2 window and which one it was (0 to 3; 4 where ReLU lets nothing through).
template <int CHANNELS, int VECTORS>
void window(const Shape &s, const float *in, const float *weights, const float *bias, float *out,
            uint8_t *which, size_t step) {
    const size_t row = size_t(s.width) * s.lanes;
    Vector best[CHANNELS][VECTORS];
    Mask place[CHANNELS][VECTORS];
    for (int corner = 0; corner < 4; corner++) {
        Vector sums[CHANNELS][VECTORS];
        pixel<CHANNELS, VECTORS>(s, in + (corner / 2) * row + (corner % 2) * s.lanes, weights, bias, sums);
        for (int c = 0; c < CHANNELS; c++)
            for (int v = 0; v < VECTORS; v++) {
                const Mask larger = corner == 0 ? Mask{} == 0 : sums[c][v] > best[c][v];
                best[c][v] = larger ? sums[c][v] : best[c][v];
                place[c][v] = larger ? corner - Mask{} : place[c][v];
            }
    }
    for (int c = 0; c < CHANNELS; c++)
        for (int v = 0; v < VECTORS; v++) {
            const Mask shut = best[c][v] <= 0;  // a NaN is none of both and stays
            store(out + c * step + v * WIDTH, shut ? Vector{} : best[c][v]);
            store(which + c * step + v * WIDTH, shut ? 4 - Mask{} : place[c][v]);
        }
}

// ---------------------------------------------------------------- backward

// Spread a row of the pooled gradient over the two rows `full` of the convolution's outputs that it came from.
// Planes of channels are `plane` apart in `full`. Adds its sums per channel to `bias`, (outputs, WIDTH).
void spread(const Shape &s, const float *gradient, const uint8_t *which, float *full, size_t plane, float *bias) {
    const int wide = s.wide(), lanes = s.lanes;
    const size_t step = size_t(s.high() / 2) * (wide / 2) * lanes;
    for (int c = 0; c < s.outputs; c++) {
        const float *from = gradient + c * step;
        const uint8_t *place = which + c * step;
        float *rows = full + c * plane;
        Vector sum = load(bias + c * WIDTH);
        for (int x = 0; x < wide / 2; x++, from += lanes, place += lanes)
            for (int corner = 0; corner < 4; corner++) {
                float *__restrict to = rows + (size_t(corner / 2) * wide + 2 * x + corner % 2) * lanes;
                for (int l = 0; l < lanes; l++) to[l] = place[l] == corner ? from[l] : 0;
                for (int l = 0; l < lanes; l += WIDTH) sum += load(to + l);
            }
        if (wide % 2)  // pooling leaves out the last column
            for (int y = 0; y < 2; y++) std::memset(rows + (size_t(y + 1) * wide - 1) * lanes, 0, sizeof(float) * lanes);
        store(bias + c * WIDTH, sum);
    }
}

// Adds one row's part to the kernel gradients of CHANNELS outputs and COUNT neighbouring taps.
template <int CHANNELS, int COUNT>
inline void row_taps(const Shape &s, const float *gradients, size_t plane, const float *in, float *sums,
                     size_t next) {
    const int lanes = s.lanes, length = s.wide() * lanes;
    Vector total[CHANNELS][COUNT];
    for (int c = 0; c < CHANNELS; c++)
        for (int t = 0; t < COUNT; t++) total[c][t] = load(sums + (c * next + t) * WIDTH);
    for (int at = 0; at < length; at += WIDTH) {
        Vector g[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) g[c] = held(gradients + c * plane + at);
        for (int t = 0; t < COUNT; t++) {
            const Vector x = held(in + at + t * lanes);
            for (int c = 0; c < CHANNELS; c++) total[c][t] += g[c] * x;
        }
    }
    for (int c = 0; c < CHANNELS; c++)
        for (int t = 0; t < COUNT; t++) store(sums + (c * next + t) * WIDTH, total[c][t]);
}

// Adds the part of row y to the gradient of the kernels, (outputs, inputs, taps, WIDTH): a row of gradients and
// of inputs stays in the nearest cache while every tap passes over it.
void kernel_row(const Shape &s, const float *in, int y, const float *gradients, size_t plane, float *sums) {
    const size_t row = size_t(s.width) * s.lanes;
    const size_t taps = size_t(s.inputs) * s.kernel_height * s.kernel_width;
    for (int c = 0; c < s.outputs; c += DEEP)
        for (int i = 0; i < s.inputs; i++)
            for (int ky = 0; ky < s.kernel_height; ky++)
                for (int kx = 0; kx < s.kernel_width; kx += TAPS) {
                    const float *at = in + (size_t(i) * s.height + y + ky) * row + size_t(kx) * s.lanes;
                    const size_t tap = (size_t(i) * s.kernel_height + ky) * s.kernel_width + kx;
                    float *to = sums + (c * taps + tap) * WIDTH;
                    constant<DEEP>(std::min(DEEP, s.outputs - c), [&](auto channels) {
                        constant<TAPS>(std::min(TAPS, s.kernel_width - kx), [&](auto count) {
                            row_taps<channels(), count()>(s, gradients + c * plane, plane, at, to, taps);
                        });
                    });
                }
}

// The sums of `count` registers.
void collect(const std::vector<float> &sums, float *result) {
    for (size_t t = 0; t < sums.size() / WIDTH; t++) {
        float total = 0;
        for (int l = 0; l < WIDTH; l++) total += sums[t * WIDTH + l];
        result[t] = total;
    }
}

// One pixel of the gradient of CHANNELS inputs. `weights` are (outputs, taps, all inputs).
template <int CHANNELS, int VECTORS>
void input_pixel(const Shape &s, const float *full, const float *weights, int y, int x, float *out,
                 size_t step) {
    const size_t row = size_t(s.wide()) * s.lanes, plane = row * s.high();
    const int first_y = std::max(0, y - s.high() + 1), last_y = std::min(s.kernel_height - 1, y);
    const int first_x = std::max(0, x - s.wide() + 1), last_x = std::min(s.kernel_width - 1, x);
    Vector sums[CHANNELS][VECTORS]{};
    for (int o = 0; o < s.outputs; o++)
        for (int ky = first_y; ky <= last_y; ky++)
            for (int kx = first_x; kx <= last_x; kx++) {
                const float *at = full + o * plane + (y - ky) * row + size_t(x - kx) * s.lanes;
                const float *w = weights + ((size_t(o) * s.kernel_height + ky) * s.kernel_width + kx) * s.inputs;
                Vector g[VECTORS];
                for (int v = 0; v < VECTORS; v++) g[v] = held(at + v * WIDTH);
                for (int c = 0; c < CHANNELS; c++) {
                    const Vector one = all(w[c]);
                    for (int v = 0; v < VECTORS; v++) sums[c][v] += one * g[v];
                }
            }
    for (int c = 0; c < CHANNELS; c++)
        for (int v = 0; v < VECTORS; v++) store(out + c * step + v * WIDTH, sums[c][v]);
}

// (outputs, inputs, taps) as (inputs, taps, outputs), or as (outputs, taps, inputs).
std::vector<float> arranged(const Shape &s, const float *weights, bool outputs_last) {
    const int taps = s.kernel_height * s.kernel_width;
    std::vector<float> made(size_t(s.outputs) * s.inputs * taps);
    for (int o = 0; o < s.outputs; o++)
        for (int i = 0; i < s.inputs; i++)
            for (int t = 0; t < taps; t++)
                made[outputs_last ? (size_t(i) * taps + t) * s.outputs + o : (size_t(o) * taps + t) * s.inputs + i] =
                    *weights++;
    return made;
}

}  // namespace

extern "C" {

// out and which: (outputs, high / 2, wide / 2, lanes), rounded down.
void forward(const Shape *shape, const float *in, const float *weights, const float *bias, float *out,
             uint8_t *which) {
    const Shape &s = *shape;
    const int pooled_high = s.high() / 2, pooled_wide = s.wide() / 2;
    const size_t row = size_t(s.width) * s.lanes, step = size_t(pooled_high) * pooled_wide * s.lanes;
    const std::vector<float> table = arranged(s, weights, true);
    for (int y = 0; y < pooled_high; y++)
        for (int x = 0; x < pooled_wide; x++)
            for (int c = 0; c < s.outputs; c += TILE)
                pieces(s.lanes, [&](int lane, auto vectors) {
                    const float *from = in + 2 * y * row + size_t(2 * x) * s.lanes + lane;
                    const size_t to = c * step + (size_t(y) * pooled_wide + x) * s.lanes + lane;
                    constant<TILE>(std::min(TILE, s.outputs - c), [&](auto channels) {
                        window<channels(), vectors()>(s, from, &table[c], bias + c, out + to, which + to, step);
                    });
                });
}

// gradient as out above. in_gradient may be null: not wanted; then scratch is (outputs, 2, wide, lanes), else
// (outputs, high, wide, lanes).
void backward(const Shape *shape, const float *in, const float *weights, const float *gradient,
              const uint8_t *which, float *scratch, float *weight_gradient, float *bias_gradient,
              float *in_gradient) {
    const Shape &s = *shape;
    const size_t row = size_t(s.wide()) * s.lanes, plane = row * (in_gradient ? s.high() : 2);
    std::vector<float> kernels(size_t(s.outputs) * s.inputs * s.kernel_height * s.kernel_width * WIDTH);
    std::vector<float> biases(size_t(s.outputs) * WIDTH);
    for (int y = 0; y + 1 < s.high(); y += 2) {
        const size_t from = size_t(y / 2) * (s.wide() / 2) * s.lanes;
        float *rows = scratch + (in_gradient ? y * row : 0);
        spread(s, gradient + from, which + from, rows, plane, biases.data());
        kernel_row(s, in, y, rows, plane, kernels.data());
        kernel_row(s, in, y + 1, rows + row, plane, kernels.data());
    }
    collect(kernels, weight_gradient);
    collect(biases, bias_gradient);
    if (!in_gradient) return;
    if (s.high() % 2)  // pooling leaves out the last row
        for (int c = 0; c < s.outputs; c++) std::memset(scratch + c * plane + plane - row, 0, sizeof(float) * row);
    const size_t step = size_t(s.height) * s.width * s.lanes;
    const std::vector<float> table = arranged(s, weights, false);
    for (int y = 0; y < s.height; y++)
        for (int x = 0; x < s.width; x++)
            for (int c = 0; c < s.inputs; c += TILE)
                pieces(s.lanes, [&](int lane, auto vectors) {
                    float *to = in_gradient + c * step + (size_t(y) * s.width + x) * s.lanes + lane;
                    constant<TILE>(std::min(TILE, s.inputs - c), [&](auto channels) {
                        input_pixel<channels(), vectors()>(s, scratch + lane, &table[c], y, x, to, step);
                    });
                });
}

// Images of bytes (batch, inputs, height, width) to (inputs, height, width, lanes): padded with black, cut to
// their own size at down and right (batch), mirrored where it says so, then (value - shift) * scale of each
// channel. Lanes without an image are zero.
void prepare(const Shape *shape, const uint8_t *images, int batch, int padding, const int64_t *down,
             const int64_t *right, const uint8_t *mirrored, const float *shift, const float *scale, float *out) {
    const int high = shape->height, wide = shape->width, channels = shape->inputs, lanes = shape->lanes;
    constexpr int GROUP = 16;
    std::vector<uint8_t> rows(size_t(GROUP) * wide);
    for (int first = 0; first < lanes; first += GROUP) {
        const int count = std::max(0, std::min(GROUP, batch - first));
        for (int c = 0; c < channels; c++)
            for (int y = 0; y < high; y++) {
                std::memset(rows.data(), 0, rows.size());
                for (int b = 0; b < count; b++) {
                    const int image = first + b, from_y = y + int(down[image]) - padding;
                    if (from_y < 0 || from_y >= high) continue;
                    const int x = int(right[image]) - padding, start = std::max(0, -x), end = std::min(wide, wide - x);
                    uint8_t *to = &rows[size_t(b) * wide];
                    std::memcpy(to + start, images + ((size_t(image) * channels + c) * high + from_y) * wide + start + x,
                                end - start);
                    if (mirrored[image]) std::reverse(to, to + wide);
                }
                float *to = out + (size_t(c) * high + y) * wide * lanes + first;
                for (int x = 0; x < wide; x++)
                    for (int b = 0; b < GROUP; b++)
                        to[size_t(x) * lanes + b] = (float(rows[size_t(b) * wide + x]) - shift[c]) * scale[c];
                for (int x = 0; x < wide && count < GROUP; x++)
                    for (int b = count; b < GROUP; b++) to[size_t(x) * lanes + b] = 0;
            }
    }
}
}
