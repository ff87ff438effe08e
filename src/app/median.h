#pragma once
#include <vector>

namespace millrace {

// Of one value or more; of an even number the mean of the two in the middle.
double median_of(std::vector<double> values);

}  // namespace millrace
