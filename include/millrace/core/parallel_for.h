#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace millrace {

// Calls body(i) for each i < count from several threads: for calls that wait for a file system, whose server answers
// many at once. `calls_for_a_thread`: fewer are not worth a thread. Throws what the call of the lowest i threw, once
// all calls that were begun have ended.
template <class Body>
void parallel_for(std::size_t count, const Body& body, std::size_t calls_for_a_thread = 16) {
  constexpr std::size_t most_threads = 32;
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::size_t failed = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < count;) {
      try {
        body(i);
      } catch (...) {
        next = count;
        const std::lock_guard turn(mutex);
        if (i >= failed) continue;
        failed = i;
        failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const std::size_t threads = std::min(most_threads, count / calls_for_a_thread);
    try {
      for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
    } catch (const std::system_error&) {  // there are no more to be had: the others do it all
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace millrace
