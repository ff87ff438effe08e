#include "millrace/checkpoint/run_lease.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>

#include "millrace/checkpoint/slurm_number.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/storage_error.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// What stands in LEASE.
struct Owner {
  std::string nonce, process, host;
  long long job = 0, restart = 0, step = 0;  // of Slurm; 0 = none
  std::int64_t renewals = 0;                 // counts up while the owner lives

  static Owner self() {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    std::random_device random;
    return {fmt::format("{}-{:08x}", process_name(), random()),
            process_name(),
            host,
            slurm_number("SLURM_JOB_ID").value_or(0),
            slurm_number("SLURM_RESTART_COUNT").value_or(0),
            slurm_number("SLURM_STEP_ID").value_or(0),
            0};
  }

  std::string to_text() const {
    return Json{{"nonce", nonce},     {"process", process}, {"host", host},        {"job", job},
                {"restart", restart}, {"step", step},       {"renewals", renewals}}
               .dump(2) +
           "\n";
  }

  std::string describe() const {
    return job ? fmt::format("job {} (process {} on {})", job, process, host)
               : fmt::format("process {} on {}", process, host);
  }

  // Slurm starts a job's next step or life only when the one before is over, as far as it knows.
  bool precedes(const Owner& later) const {
    return job != 0 && job == later.job && std::pair(restart, step) < std::pair(later.restart, later.step);
  }
};

// Nothing when there is none, or none that makes sense. StorageError when that cannot be told.
std::optional<Owner> read_owner(const std::filesystem::path& file) {
  std::error_code error;
  const bool exists = std::filesystem::exists(file, error);
  check_storage(error, file);
  if (!exists) return std::nullopt;
  try {
    const auto json = Json::parse(read_file(file));
    return Owner{json.at("nonce"),   json.at("process"), json.at("host"),    json.at("job"),
                 json.at("restart"), json.at("step"),    json.at("renewals")};
  } catch (const StorageError&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The same where an owner that cannot be read is as good as none.
std::optional<Owner> try_read_owner(const std::filesystem::path& file) {
  try {
    return read_owner(file);
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

// Returns when the folder is free. What stays the same for `stale_after` belongs to nobody: no clocks are compared,
// which differ between machines.
void wait_until_free(const std::filesystem::path& file, const Owner& self, const LeaseTimes& times) {
  const auto first = read_owner(file);
  if (!first) return;
  const Stopwatch watch;
  for (bool told = false;; told = true) {
    const auto owner = read_owner(file);
    if (!owner)
      throw Error(Exit::requeue, fmt::format("run.dir: {}, which had it, has just ended", first->describe()),
                  "start again: there may be a newer checkpoint now");
    if (process_is_gone(owner->process)) return;
    if (owner->precedes(self)) {
      log::warning("run.dir: taking it over from an earlier start of this job, {}", owner->describe());
      return;
    }
    if (owner->nonce != first->nonce || owner->renewals != first->renewals)
      throw Error(Exit::usage,
                  fmt::format("run.dir: {} is in use by {}", file.parent_path().string(), owner->describe()),
                  "stop that one first, or choose another run.dir");
    if (watch.seconds() > times.stale_after) {
      log::warning("run.dir: taking it over from {}, which has not been heard of for {:.0f} s", owner->describe(),
                   watch.seconds());
      return;
    }
    if (stop::requested()) throw Error(Exit::requeue, "told to stop while waiting for run.dir; nothing was written");
    if (!told)
      log::info("run.dir: {} was in use by {}; waiting up to {:.0f} s to see whether it still is",
                file.parent_path().string(), owner->describe(), times.stale_after);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace

struct RunLease::Impl {
  std::filesystem::path file;
  std::string nonce;
  std::jthread renewing;  // rank 0

  ~Impl() {
    if (!renewing.joinable()) return;
    renewing.request_stop();
    renewing.join();
    if (const auto owner = try_read_owner(file); owner && owner->nonce == nonce) {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  }

  bool is_ours() const {
    std::error_code error;
    if (!std::filesystem::exists(file, error) && !error) return false;  // another one has had it, and has ended
    const auto owner = try_read_owner(file);
    return !owner || owner->nonce == nonce;
  }

  void renew_until_stopped(const std::stop_token& stop, Owner self, double every) {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    const auto pause = std::chrono::duration<double>(every);
    while (!changed.wait_for(lock, stop, pause, [&] { return stop.stop_requested(); })) {
      if (!is_ours()) {
        const auto owner = try_read_owner(file);
        log::error("run.dir: {} has taken this run over; this instance ends and writes nothing more",
                   owner ? owner->describe() : "another instance, which has ended since,");
        stop::request(SIGTERM);
        return;
      }
      ++self.renewals;
      try {
        write_file_atomically(file, self.to_text());
      } catch (const Error& failed) {
        log::warning("LEASE could not be renewed: {}", failed.what());
      }
    }
  }
};

RunLease::RunLease(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunLease::RunLease(RunLease&&) noexcept = default;
RunLease::~RunLease() = default;

RunLease RunLease::acquire(const Group& world, const std::filesystem::path& run_dir, LeaseTimes times) {
  auto impl = std::make_unique<Impl>();
  impl->file = run_dir / "LEASE";
  on_root(world, [&] {
    const Owner self = Owner::self();
    impl->nonce = self.nonce;
    wait_until_free(impl->file, self, times);
    write_file_atomically(impl->file, self.to_text());
    impl->renewing = std::jthread([&impl = *impl, self, every = times.renewed_every](const std::stop_token& stop) {
      impl.renew_until_stopped(stop, self, every);
    });
  });
  impl->nonce = world.broadcast(impl->nonce);
  return RunLease(std::move(impl));
}

const std::string& RunLease::nonce() const {
  return impl_->nonce;
}

bool RunLease::is_ours() const {
  return impl_->is_ours();
}

}  // namespace millrace
