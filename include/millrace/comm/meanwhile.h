#pragma once
#include <functional>

namespace millrace {

// As long as it lives, this thread calls `work` again and again while it waits for other ranks; one at a time. For what
// cannot wait for the slowest of them. What `work` throws ends the wait; it must not call MPI.
class Meanwhile {
 public:
  explicit Meanwhile(std::function<void()> work);
  ~Meanwhile();
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;
};

}  // namespace millrace
