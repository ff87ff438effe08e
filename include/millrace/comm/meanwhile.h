#pragma once
#include <functional>

namespace millrace {

// While this object lives, its thread calls `work` again and again whenever it waits for other ranks: for work that
// cannot wait for the slowest of them. One such object per thread at a time. What `work` throws ends the wait; it must
// not call MPI.
class Meanwhile {
 public:
  explicit Meanwhile(std::function<void()> work);
  ~Meanwhile();
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;
};

}  // namespace millrace
