#include "millrace/nn/torch_error.h"

#include <c10/util/Exception.h>

namespace millrace {

std::optional<Error> present_torch_error() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return Error(Exit::usage, error.what_without_backtrace(),
                 "batch.micro, model.gradient_checkpointing and parallel.strategy on trainers, encode.batch_size on "
                 "producers and generate.batch_size decide how much memory a GPU needs");
  } catch (const c10::AcceleratorError& error) {
    return Error(Exit::timeout, error.what_without_backtrace(),
                 "the kernel's log tells of a broken GPU, `millrace env` of the driver");
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace millrace
