#pragma once
#include <string>

#include "millrace/image/image.h"

namespace millrace::shapes {

// What a picture shows; "none" where it is nothing of the quickstart's world.
struct Verdict {
  std::string colour = "none", shape = "none", background = "none";
};

// The colour and the background are the most frequent ones among pixels labelled with the nearest of the six. The shape
// is the one of the three that, put where the largest patch of that colour lies and made as large as it is, covers it
// best; none where even that one has less than `least_overlap` (intersection over union) in common with the patch.
inline constexpr double least_overlap = 0.75;
Verdict look_at(const Image& image);

}  // namespace millrace::shapes
