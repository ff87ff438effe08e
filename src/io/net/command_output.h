#pragma once
#include <sys/types.h>

#include <chrono>
#include <string>

#include "millrace/io/net/stream.h"

namespace millrace {

// What a shell command writes.
//
// NOTE [Commands in sessions of their own]: Slurm, mpirun and a terminal send USR1, TERM and INT to the process group
// of a rank, which saves and leaves in its own time. A command in that group would die of them, and its archive would
// count as broken. So it gets a session, without a terminal to ask for passwords at, and whoever started it ends it,
// and all that it has started, once it is not needed any more.
class CommandOutput final : public ByteStream {
 public:
  CommandOutput(std::string command, const TransferOptions& options);
  ~CommandOutput() override;  // a reader that stops early ends the command; what that says is of no interest

  // 0 once the command has ended well. Error(io) when it failed, or was silent or did not end for too long.
  std::size_t read(std::span<std::byte> buffer) override;
  void finish() override;

 private:
  using Clock = std::chrono::steady_clock;

  bool wait_for_output(std::chrono::milliseconds limit) const;
  bool wait_for_exit(Clock::time_point deadline) const;
  void pass_over_rest(Clock::time_point deadline);
  void check_end(Clock::time_point deadline);
  void close_output();
  int reap();  // what is left of the command is killed; returns its status
  void stop();

  const std::string command_;
  const TransferOptions options_;
  int output_ = -1;  // -1 = the end was seen, or the command was stopped
  pid_t shell_ = -1;
};

}  // namespace millrace
