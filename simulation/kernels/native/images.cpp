// A convolution (stride 1, no padding), its bias, ReLU and 2x2 max-pooling as one pass, forward and backward.
//
// Tensors of images are float32 (channels, height, width, lanes), contiguous: the batch is innermost and a
// multiple of 16, so that a few channels fill the vector registers that a small network's channels alone do
// not. Sums run in one fixed order: equal input gives equal bits on one type of processor.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "layers.hpp"
#include "registers.hpp"

namespace {

// Going backward.
constexpr int HELD = REGISTERS == 32 ? 24 : 12;  // registers of a window that are held at once,
constexpr int TALL = 5, BLOCK = 4;               // of at most so many rows, and so many of each
constexpr int GROUP = 8;  // images at a time, so few that the nearest cache holds them

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

// Pooling lets the gradient through to one pixel in four, ReLU to about half of these. What is let through is
// listed, output by output, and only that is computed: a window of the images, pixels and their channels side by
// side, times one number. That fills registers from one image, so the images are turned, GROUP at a time.

struct Passed {
    std::vector<int32_t> at;  // where its window of the turned images begins
    std::vector<float> gradient;
    explicit Passed(size_t most) : at(most + GROUP), gradient(most + GROUP) {}
};

struct Windows {
    int channels, row;  // of a turned image: floats of a pixel and from one row to the next
    int high;           // rows of a window, and registers that a row of it takes, the last one partly
    int vectors;
    size_t image;  // from one to the next: a cache line more than it has, or powers of two would share their places
    explicit Windows(const Shape &s)
        : channels(s.inputs), row(s.width * s.inputs), high(s.kernel_height),
          vectors((s.kernel_width * s.inputs + WIDTH - 1) / WIDTH), image(size_t(s.height) * row + 16) {}
    int filled() const { return vectors * WIDTH; }
    size_t whole() const { return image * GROUP + WIDTH; }  // the last window's registers may reach beyond it
};

// Images (inputs, height, width, lanes) from a lane on as (GROUP, height, width, inputs), or back.
template <bool BACK> void turn(const Shape &s, const Windows &w, float *lanes, float *turned) {
    const size_t pixels = size_t(s.height) * s.width;
    for (int c = 0; c < s.inputs; c++)
        for (size_t p = 0; p < pixels; p++) {
            float *from = lanes + (c * pixels + p) * s.lanes, *to = turned + p * w.channels + c;
            for (int l = 0; l < GROUP; l++) (BACK ? from[l] : to[l * w.image]) = BACK ? to[l * w.image] : from[l];
        }
}

typedef float Floats __attribute__((vector_size(GROUP * 4), aligned(4)));  // of each lane one
typedef int32_t Ints __attribute__((vector_size(GROUP * 4), aligned(4)));
typedef uint8_t Codes __attribute__((vector_size(GROUP), aligned(1)));

template <class Values> inline Values picked(Values from, Ints order) {
#if defined(__clang__)
    Values made;
    for (int l = 0; l < GROUP; l++) made[l] = from[order[l]];
    return made;
#else
    return __builtin_shuffle(from, order);
#endif
}

// For each set of open lanes, a bit each: which they are, in their order.
struct Orders {
    Ints of[256]{};
    Orders() {
        for (int open = 0; open < 256; open++)
            for (int l = 0, count = 0; l < GROUP; l++)
                if (open >> l & 1) of[open][count++] = l;
    }
};
const Orders orders;

// Lists what is let through of one output's gradient, image after image within a window's place: windows that
// overlap come late enough for the memory to have taken what was added to the one before. Adds to `bias`.
// No branch depends on a lane: it would be taken at random.
int list_passed(const Shape &s, const Windows &w, const float *gradient, const uint8_t *which, Passed &passed,
                float *bias) {
    int count = 0;
    Floats sum = *reinterpret_cast<const Floats *>(bias);
    Ints images;
    for (int l = 0; l < GROUP; l++) images[l] = l * w.image;
    for (int y = 0; y < s.high() / 2; y++)
        for (int x = 0; x < s.wide() / 2; x++, gradient += s.lanes, which += s.lanes) {
            const auto corner = __builtin_convertvector(*reinterpret_cast<const Codes *>(which), Ints);
            const int place = 2 * (y * w.row + x * w.channels);
            const Ints at = images + place + (corner & 1) * w.channels + (corner >> 1) * w.row;
            uint64_t shut;
            std::memcpy(&shut, which, GROUP);
            shut = (shut >> 2 & 0x0101010101010101u) * 0x0102040810204080u >> 56;  // a lane's bit from each byte
            const Ints &order = orders.of[255 - shut];
            const Floats all = *reinterpret_cast<const Floats *>(gradient);
            *reinterpret_cast<Ints *>(&passed.at[count]) = picked(at, order);
            *reinterpret_cast<Floats *>(&passed.gradient[count]) = picked(all, order);
            count += 8 - __builtin_popcountll(shut);
            sum += corner < 4 ? all : Floats{};
        }
    *reinterpret_cast<Floats *>(bias) = sum;
    return count;
}

// Adds to ROWS rows of VECTORS registers of one output's kernel gradients, `filled` apart in `sums`.
template <int ROWS, int VECTORS>
[[gnu::noinline]] void add_to_kernels(const Windows &w, const Passed &passed, int count, const float *images,
                                      float *sums) {
    const size_t row = w.row, filled = w.filled();
    Vector total[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) total[r][v] = load(sums + r * filled + v * WIDTH);
    for (int k = 0; k < count; k++) {
        const Vector g = all(passed.gradient[k]);
        const float *at = images + passed.at[k];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) total[r][v] += g * load(at + r * row + v * WIDTH);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * filled + v * WIDTH, total[r][v]);
}

// Adds to the gradients of the turned images what ROWS rows of one output's kernels give, zero where they end.
template <int ROWS, int VECTORS>
[[gnu::noinline]] void add_to_images(const Windows &w, const Passed &passed, int count, const float *kernels,
                                     float *images) {
    const size_t row = w.row, filled = w.filled();
    Vector kept[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) kept[r][v] = held(kernels + r * filled + v * WIDTH);
    for (int k = 0; k < count; k++) {
        const Vector g = all(passed.gradient[k]);
        float *at = images + passed.at[k];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) {
                float *to = at + r * row + v * WIDTH;
                store(to, load(to) + g * kept[r][v]);
            }
    }
}

// Calls body(row, register, constant numbers of both) for blocks of a window that the registers hold.
template <class Body> void blocks(const Windows &w, Body body) {
    for (int v = 0; v < w.vectors; v += BLOCK)
        constant<BLOCK>(std::min(BLOCK, w.vectors - v), [&](auto vectors) {
            constexpr int rows = std::min(TALL, HELD / vectors());
            for (int r = 0; r < w.high; r += rows)
                constant<rows>(std::min(rows, w.high - r), [&](auto some) { body(r, v, some, vectors); });
        });
}

// Kernels (outputs, inputs, taps) as the windows lie, (outputs, rows, filled), or back.
template <bool BACK> void lay(const Shape &s, const Windows &w, float *kernels, float *laid) {
    for (int o = 0; o < s.outputs; o++)
        for (int i = 0; i < s.inputs; i++)
            for (int y = 0; y < s.kernel_height; y++)
                for (int x = 0; x < s.kernel_width; x++, kernels++) {
                    float &one = laid[(size_t(o) * w.high + y) * w.filled() + x * s.inputs + i];
                    (BACK ? *kernels : one) = BACK ? one : *kernels;
                }
}

// (outputs, inputs, taps) as (inputs, taps, outputs).
std::vector<float> outputs_last(const Shape &s, const float *weights) {
    const int taps = s.kernel_height * s.kernel_width;
    std::vector<float> made(size_t(s.outputs) * s.inputs * taps);
    for (int o = 0; o < s.outputs; o++)
        for (int t = 0; t < s.inputs * taps; t++) made[size_t(t) * s.outputs + o] = *weights++;
    return made;
}

}  // namespace

extern "C" {

// out and which: (outputs, high / 2, wide / 2, lanes), rounded down.
void row_forward(const Shape *shape, const float *in, const float *weights, const float *bias, float *out,
             uint8_t *which) {
    const Shape &s = *shape;
    const int pooled_high = s.high() / 2, pooled_wide = s.wide() / 2;
    const size_t row = size_t(s.width) * s.lanes, step = size_t(pooled_high) * pooled_wide * s.lanes;
    const std::vector<float> table = outputs_last(s, weights);
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

// gradient as out above. in_gradient may be null: not wanted.
void row_backward(const Shape *shape, const float *in, const float *weights, const float *gradient,
              const uint8_t *which, float *weight_gradient, float *bias_gradient, float *in_gradient) {
    const Shape &s = *shape;
    const Windows w(s);
    const size_t places = size_t(s.high() / 2) * (s.wide() / 2), own = size_t(w.high) * w.filled();
    std::vector<float> images(w.whole()), of_images(in_gradient ? w.whole() : 0);
    std::vector<float> kernels(s.outputs * own), sums(s.outputs * own);
    Passed passed(places * GROUP);
    std::vector<float> biases(size_t(s.outputs) * GROUP);
    lay<false>(s, w, const_cast<float *>(weights), kernels.data());
    for (int lane = 0; lane < s.lanes; lane += GROUP) {
        turn<false>(s, w, const_cast<float *>(in) + lane, images.data());
        std::fill(of_images.begin(), of_images.end(), 0.0f);
        for (int o = 0; o < s.outputs; o++) {
            const size_t from = o * places * s.lanes + lane;
            const int count = list_passed(s, w, gradient + from, which + from, passed, &biases[o * GROUP]);
            blocks(w, [&](int r, int v, auto rows, auto vectors) {
                const int at = r * w.row + v * WIDTH;
                const size_t kernel = o * own + size_t(r) * w.filled() + v * WIDTH;
                add_to_kernels<rows(), vectors()>(w, passed, count, images.data() + at, &sums[kernel]);
                if (in_gradient)
                    add_to_images<rows(), vectors()>(w, passed, count, &kernels[kernel], of_images.data() + at);
            });
        }
        if (in_gradient) turn<true>(s, w, in_gradient + lane, of_images.data());
    }
    lay<true>(s, w, weight_gradient, sums.data());
    for (int o = 0; o < s.outputs; o++) {
        const float *of_lanes = &biases[size_t(o) * GROUP];
        bias_gradient[o] = std::accumulate(of_lanes, of_lanes + GROUP, 0.0f);
    }
}

// Images of bytes (batch, inputs, height, width) to (inputs, height, width, lanes): padded with black, cut to
// their own size at down and right (batch), mirrored where it says so, then (value - shift) * scale of each
// channel. Lanes without an image are zero.
void prepare(const Shape *shape, const uint8_t *images, int batch, int padding, const int64_t *down,
             const int64_t *right, const uint8_t *mirrored, const float *shift, const float *scale, float *out) {
    const int high = shape->height, wide = shape->width, channels = shape->inputs, lanes = shape->lanes;
    constexpr int TOGETHER = 16;
    std::vector<uint8_t> rows(size_t(TOGETHER) * wide);
    for (int first = 0; first < lanes; first += TOGETHER) {
        const int count = std::max(0, std::min(TOGETHER, batch - first));
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
                    for (int b = 0; b < TOGETHER; b++)
                        to[size_t(x) * lanes + b] = (float(rows[size_t(b) * wide + x]) - shift[c]) * scale[c];
                for (int x = 0; x < wide && count < TOGETHER; x++)
                    for (int b = count; b < TOGETHER; b++) to[size_t(x) * lanes + b] = 0;
            }
    }
}
}
