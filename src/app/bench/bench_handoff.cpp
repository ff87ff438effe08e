#include "bench/bench_handoff.h"

#include <cstring>
#include <functional>
#include <thread>

#include "millrace/handoff/in_process_handoff.h"

namespace millrace {
namespace {

// Parcel n starts and ends with its number.
void stamp(std::vector<std::byte>& parcel, std::uint64_t number) {
  std::memcpy(parcel.data(), &number, sizeof number);
  std::memcpy(parcel.data() + parcel.size() - sizeof number, &number, sizeof number);
}

bool has_stamp(std::span<const std::byte> parcel, std::uint64_t number) {
  return std::memcmp(parcel.data(), &number, sizeof number) == 0 &&
         std::memcmp(parcel.data() + parcel.size() - sizeof number, &number, sizeof number) == 0;
}

void run_sender(ParcelSender& sender, const HandoffBench& bench, const std::function<bool()>& leave = {}) {
  std::vector<std::byte> parcel(bench.parcel_bytes);
  const std::uint64_t total = std::uint64_t(bench.parcels) * (bench.runs + 1);
  for (std::uint64_t number = 0; number < total; ++number) {
    stamp(parcel, number);
    if (!sender.send(0, parcel, leave)) break;
  }
  sender.finish();
}

// Seconds of every run; the first, which also touches all memory, is left out.
std::vector<double> run_receiver(ParcelReceiver& receiver, const HandoffBench& bench) {
  std::vector<double> seconds;
  std::uint64_t number = 0;
  for (int run = 0; run <= bench.runs; ++run) {
    const Backoff since;
    for (int i = 0; i < bench.parcels; ++i) {
      const auto parcel = receiver.receive(60);
      if (!parcel) fail(Exit::suspect_node, "no parcel within a minute");
      ensure(has_stamp(parcel->bytes(), number++), "parcel lost, doubled or damaged");
    }
    if (run > 0) seconds.push_back(since.seconds());
  }
  receiver.finish();
  return seconds;
}

std::vector<double> between_threads(const HandoffBench& bench) {
  auto ends = make_in_process_handoff({bench.parcel_bytes, bench.slots});
  std::jthread producer(
      [&](std::stop_token stop) { run_sender(*ends.sender, bench, [&] { return stop.stop_requested(); }); });
  return run_receiver(*ends.receiver, bench);
}

std::vector<double> between_ranks(const Group& group, const HandoffBench& bench) {
  const int pair = group.rank() / 2, peer = 1 - group.rank() % 2;
  const Group both = group.split(pair, group.rank());
  if (both.size() == 1) return std::vector<double>(bench.runs, 0);  // the last of an odd number looks on
  const HandoffSize size{bench.parcel_bytes, bench.slots};
  if (peer == 1) return run_receiver(*make_mpi_receiver(both, {peer}, size), bench);
  run_sender(*make_mpi_sender(both, {peer}, size), bench);
  return std::vector<double>(bench.runs, 0);
}

}  // namespace

std::vector<double> bench_handoff(const Group& group, const HandoffBench& bench) {
  auto figures = group.size() == 1 ? between_threads(bench) : between_ranks(group, bench);
  const double bytes = static_cast<double>(bench.parcel_bytes) * bench.parcels;
  for (double& figure : figures) figure = figure > 0 ? bytes / figure : 0;
  group.all_reduce_sum(figures);
  return figures;
}

}  // namespace millrace
