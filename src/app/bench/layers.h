#pragma once
#include <torch/types.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// The convolutions, matrix products and attentions of a network, which are LibTorch's and its libraries' work: which
// there are, and how long each takes.
namespace millrace {

enum class LayerKind { convolution, matrix_product, attention };

// What decides how long a call takes.
struct LayerShape {
  LayerKind kind;
  std::vector<std::int64_t> input;   // (B, C, h, w); rows x C; queries (B, heads, T, d)
  std::vector<std::int64_t> second;  // weight (out, C, k, k); weight (out, C); keys (B, heads, S, d)
  bool with_bias = false;
  std::int64_t stride = 1, padding = 0;
  bool wants_input_gradient = true;  // not where the input comes from outside, like text

  auto operator<=>(const LayerShape&) const = default;
};

// "3x3 /2 320 -> 320, 64x64", "4096 x 320 -> 2560 + bias", "5 heads of 64, 4096 x 77"; "from input" where no gradient
// of the input is wanted.
std::string name_of(const LayerShape& shape);
// Of forward, a multiply-add counts as two; each gradient counts as much again.
double flops_of(const LayerShape& shape);

// What `forward` calls on this thread, with autograd on, and how often. In float32 a CPU computes small ones by
// kernels of ours, which are not seen; in other types it is all there is.
std::map<LayerShape, int> layers_of(const std::function<void()>& forward);

// ---- times ----

enum class LayerPass { forward, input_gradient, weight_gradient, gradients /* an attention's three at once */ };

std::vector<LayerPass> passes_of(const LayerShape& shape);
double flops_of(const LayerShape& shape, LayerPass pass);

// Of a convolution's images; the others know no layouts.
enum class Layout { nchw, channels_last };

struct LayerTable {
  struct Row {
    LayerShape shape;
    LayerPass pass;
    int calls;                                     // in a step
    std::vector<std::vector<double>> ms_of_calls;  // by layout, one for each run; of others than convolutions one list

    const std::vector<double>& own_ms(Layout own) const {
      return ms_of_calls[ms_of_calls.size() > 1 ? static_cast<std::size_t>(own) : 0];
    }
  };
  Layout own = Layout::nchw;  // the one that training has here
  std::vector<Row> rows;
};

// The rows sorted by what they take of a step: calls x milliseconds in training's own layout.
std::string to_text(const LayerTable& table);
// Of each row and layout {"figure", "unit": "ms", "median", "min", "max", "runs", "kind", "pass", "layout", "calls",
// "gflop", "tflops", "share"}: of one call; the share is of all rows in training's own layout.
std::vector<nlohmann::ordered_json> to_json(const LayerTable& table);

}  // namespace millrace
