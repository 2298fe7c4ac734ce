// The layers that other sources put together; each is defined where its name says.

#pragma once

#include <cstdint>

struct Shape {
    int inputs, height, width;  // what comes in
    int outputs, kernel_height, kernel_width;
    int lanes;
    int high() const { return height - kernel_height + 1; }  // what the convolution gives, before pooling
    int wide() const { return width - kernel_width + 1; }
};

struct Linear {
    int inputs, outputs, lanes;
    int rectified;  // whether a ReLU follows
};

extern "C" {

// images.cpp
void row_forward(const Shape *shape, const float *in, const float *weights, const float *bias, float *out,
             uint8_t *which);
void row_backward(const Shape *shape, const float *in, const float *weights, const float *gradient,
              const uint8_t *which, float *weight_gradient, float *bias_gradient, float *in_gradient);

// linear.cpp
void linear_forward(const Linear *shape, const float *in, const float *weights, const float *bias, float *out);
void linear_backward(const Linear *shape, const float *in, const float *weights, const float *out,
                     const float *gradient, float *weight_gradient, float *bias_gradient, float *in_gradient);
}
