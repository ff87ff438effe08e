#pragma once
#include "millrace/image/image.h"

// Ways in which a picture is not quite the drawing that it shows, for the judge's tests. Here, and not beside them,
// because tests themselves are compiled without optimization.
namespace millrace::shapes {

// The mean of 3 x 3 neighbours, `times` over: what a small VAE does to edges.
Image blurred(Image image, int times);

Image noisy(Image image, double deviation, unsigned seed);

}  // namespace millrace::shapes
