#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace millrace {

// What a rank says about itself in one datagram, to rank 0 or from it; all ranks run the same program on the same kind
// of machine.
struct Beat {
  enum class Leaves : std::int32_t { no, in_order, ends_run };  // the last one because a rank hangs in the run

  std::uint64_t run = 0;  // identifies the run: datagrams of another one that once had the port are thrown away
  std::int32_t rank = 0;
  Leaves leaves = Leaves::no;
  std::int32_t wants_stacks = 0;  // number of the request that all ranks write their stacks
  std::int32_t has_stacks = 0;    // the last request that this rank has met; from rank 0: that all ranks have that can
  std::int64_t step = 0;
  double unchanged_seconds = 0, slow_step_seconds = 0;
  char phase[24] = {}, awaited[32] = {};
};

struct BeatAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

// IPv4 only, like the socket of rank 0.
std::optional<BeatAddress> find_beat_address(const std::string& host, const std::string& port);

class BeatSocket {
 public:
  BeatSocket();
  ~BeatSocket();
  BeatSocket(const BeatSocket&) = delete;
  BeatSocket& operator=(const BeatSocket&) = delete;

  bool is_open() const { return fd_ >= 0; }
  // What went wrong in opening or binding it; empty: nothing.
  const std::string& problem() const { return problem_; }
  // Binds any free port and returns it; nothing if there is none.
  std::optional<int> bind();

  void send(const Beat& beat, const BeatAddress& to) const;
  // Hands over all datagrams that have come; waits a quarter of a second at most for the first.
  void receive(const std::function<void(const Beat&, const BeatAddress& from)>& hear) const;

 private:
  int fd_;
  std::string problem_;
};

}  // namespace millrace
