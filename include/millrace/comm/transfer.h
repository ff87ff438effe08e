#pragma once
#include <cstddef>
#include <memory>

namespace millrace {

// Size of the largest message: MPI's counts are ints.
inline constexpr std::size_t message_bytes = std::size_t{1} << 30;

// One message between two ranks of a Group that can be started again and again over the same memory. Move only; the
// destructor cancels a pending receive, waiting a moment for one that is under way, and lets a pending send run out on
// its own. A message that is still under way then may be written to memory later, so the owner of that memory is never
// released.
class Transfer {
 public:
  class Backend {
   public:
    virtual ~Backend() = default;
    virtual void start(std::size_t bytes) = 0;
    virtual bool done() = 0;
    virtual void cancel() = 0;
    virtual std::size_t bytes() const = 0;
  };

  Transfer() = default;
  explicit Transfer(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  // Starts sending the first `bytes` of the memory, or receiving up to all of it (`bytes` is ignored).
  void start(std::size_t bytes = 0) { backend_->start(bytes); }
  // Makes progress; true when nothing is pending. Error(suspect_node) when the other side is gone.
  bool done() { return backend_->done(); }
  // Gives up a pending receive; a no-op when nothing is pending.
  void cancel() { backend_->cancel(); }
  // Length of the last message that was received.
  std::size_t bytes() const { return backend_->bytes(); }

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace millrace
