#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <type_traits>

#include "millrace/core/storage_error.h"

namespace millrace {

// A stop was asked for while somebody waited for storage that stays away. Not a failure: nothing of it is to be told.
class ReadingStopped : public Error {
 public:
  explicit ReadingStopped(const std::string& name)
      : Error(Exit::requeue, "stopped while " + name + " could not be read") {}
};

// Repeats reads that fail with a StorageError, with growing pauses, for `data.retry_for`. All readers of a stream share
// one, so that an outage of many archives is one warning, and one word when it is over. Safe to use from several
// threads.
class StorageRetry {
 public:
  using Seconds = std::chrono::duration<double>;
  explicit StorageRetry(Seconds retry_for) : retry_for_(retry_for) {}

  // The result of `read`, which has to begin anew at every call. Error(io) once it has failed for `retry_for`,
  // ReadingStopped after a stop::request() or end().
  template <class Read>
  std::invoke_result_t<Read> run(Read read) {
    Outage outage(*this);
    while (true) {
      try {
        return read();
      } catch (const StorageError& error) {
        outage.wait(error);
      }
    }
  }

  // Nobody needs what is read any more.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  // Of one read: from its first failure until it has succeeded or was given up.
  class Outage {
   public:
    explicit Outage(StorageRetry& retry) : retry_(retry) {}
    ~Outage();
    Outage(const Outage&) = delete;
    Outage& operator=(const Outage&) = delete;
    void wait(const StorageError& error);

   private:
    void begin(const StorageError& error);

    StorageRetry& retry_;
    bool began_ = false, given_up_ = false;
    Clock::time_point since_;
    Clock::duration pause_{};
    std::string name_;
  };

  const Seconds retry_for_;
  std::mutex mutex_;
  std::condition_variable ended_there_;
  bool ended_ = false;
  int outages_ = 0;  // at present
};

}  // namespace millrace
