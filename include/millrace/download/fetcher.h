#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "millrace/download/address.h"
#include "millrace/download/failure.h"

namespace millrace {

struct FetchOptions {
  std::string user_agent;
  double timeout_seconds = 30;            // for one attempt, redirects included
  std::uint64_t max_bytes = 32ull << 20;  // of a body
  int retries = 2;                        // attempts beyond the first, for retryable failures only
  double backoff_seconds = 0.5;           // before the first retry; doubled for each further one
  double max_pause_seconds = 60;          // in which a host that asks for it is left alone
  int per_host = 2;                       // transfers from one host at the same time, whatever its ports
  int connections = 256;                  // transfers at the same time
  bool opt_out = true;                    // robots.txt, X-Robots-Tag and TDM reservations are honoured
  std::vector<Network> allow_networks;    // see may_connect
  // A host that does not answer, gives no robots.txt, only asks to wait, or was let go since it is slow is not asked
  // for so long, and its rows fail meanwhile.
  std::chrono::milliseconds host_shut_for = std::chrono::minutes(5);
};

struct Fetched {
  std::uint64_t ticket = 0;
  std::variant<std::string, Failure> result;  // the body, or why there is none
  bool host_is_shut = false;                  // its host is not asked now, and not since it is slow
};

// Fetches many URLs at once on the caller's thread. Each hop of a redirect (at most five) is checked anew: scheme,
// robots.txt of its origin, and the address behind the name at the moment of connecting. Proxies, cookies and passwords
// of the environment play no part.
class Fetcher {
 public:
  explicit Fetcher(FetchOptions options);
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  void add(std::uint64_t ticket, const std::string& url);
  // Added and not yet given out by `poll`.
  std::size_t pending() const;
  // On their way; at most `connections`.
  std::size_t transfers() const;
  // That are remembered: those with transfers, with rows that wait, or left alone for now.
  std::size_t hosts() const;
  // Works on transfers for up to `wait`, and returns as soon as some ended. Without `start_new` none is begun, so that
  // a caller who is behind gets no more than `connections` further bodies. Error(io) when this machine has no
  // certificates to verify servers with.
  std::vector<Fetched> poll(std::chrono::milliseconds wait, bool start_new = true);
  // Hosts that did not answer are asked again at once: it was not their fault.
  void forgive_hosts();
  // The caller has more rows and cannot add them for those that wait: see NOTE [Hosts that are slow].
  void let_slow_hosts_go();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
