// A whole network of rows and linear layers, its mean cross-entropy and all gradients of that as one call.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "layers.hpp"

namespace {

struct Layer {
    int is_row;  // or linear
    Shape row;
    Linear linear;
    const float *weights, *bias;
    float *out;
    uint8_t *which;  // of a row
    float *weight_gradient, *bias_gradient;
    float *in_gradient;  // null: not wanted

    void compute(const float *in) const {
        if (is_row) row_forward(&row, in, weights, bias, out, which);
        else linear_forward(&linear, in, weights, bias, out);
    }

    void go_back(const float *in, const float *gradient) const {
        if (is_row) row_backward(&row, in, weights, gradient, which, weight_gradient, bias_gradient, in_gradient);
        else linear_backward(&linear, in, weights, out, gradient, weight_gradient, bias_gradient, in_gradient);
    }
};

// The mean over the batch, and its gradient in place of the logits, (classes, lanes); 0 in lanes beyond the batch.
double cross_entropy(int classes, int lanes, int batch, float *logits, const int64_t *targets) {
    double total = 0;
    for (int l = 0; l < lanes; l++) {
        float *of = logits + l;
        if (l >= batch) {
            for (int c = 0; c < classes; c++) of[size_t(c) * lanes] = 0;
            continue;
        }
        float largest = of[0], sum = 0;
        for (int c = 1; c < classes; c++) largest = std::max(largest, of[size_t(c) * lanes]);
        total += largest - of[size_t(targets[l]) * lanes];
        for (int c = 0; c < classes; c++) sum += of[size_t(c) * lanes] = std::exp(of[size_t(c) * lanes] - largest);
        total += std::log(sum);
        for (int c = 0; c < classes; c++)
            of[size_t(c) * lanes] = (of[size_t(c) * lanes] / sum - (c == targets[l])) / batch;
    }
    return total / batch;
}

}  // namespace

extern "C" {

// The mean cross-entropy of in, lanes of images, and of targets (batch); fills the layers' gradients. The last
// layer is linear.
double fill_gradients(const Layer *layers, int count, const float *in, int batch, const int64_t *targets) {
    for (int k = 0; k < count; k++) layers[k].compute(k ? layers[k - 1].out : in);
    const Layer &last = layers[count - 1];
    const Linear &s = last.linear;
    std::vector<float> gradient(last.out, last.out + size_t(s.outputs) * s.lanes);
    const double loss = cross_entropy(s.outputs, s.lanes, batch, gradient.data(), targets);
    for (int k = count - 1; k >= 0; k--)
        layers[k].go_back(k ? layers[k - 1].out : in, k == count - 1 ? gradient.data() : layers[k + 1].in_gradient);
    return loss;
}
}
