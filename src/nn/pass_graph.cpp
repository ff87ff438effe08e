#include "millrace/nn/pass_graph.h"

namespace millrace {

static std::mutex& recording() {
  static std::mutex mutex;
  return mutex;
}

NoRecording::NoRecording() : lock_(recording()) {}

}  // namespace millrace
