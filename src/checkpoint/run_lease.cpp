#include "millrace/checkpoint/run_lease.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stop_token>
#include <string_view>
#include <thread>

#include "millrace/comm/agree.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/run_files.h"
#include "millrace/core/slurm.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/storage_error.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::string user_name() {
  const char* name = std::getenv("USER");  // the system's list of users may be a server's that does not answer
  return name && *name ? name : fmt::format("user {}", ::geteuid());
}

// What stands in LEASE.
struct Owner {
  std::string nonce, process, host;
  long long job = 0, restart = 0, step = 0;  // of Slurm; 0 = none
  std::int64_t renewals = 0;                 // counts up while the owner lives
  std::string user = {}, since = {};         // for people; earlier versions told neither

  static Owner self() {
    std::random_device random;
    return {fmt::format("{}-{:08x}", process_name(), random()),
            process_name(),
            host_name(),
            slurm::number("SLURM_JOB_ID").value_or(0),
            slurm::number("SLURM_RESTART_COUNT").value_or(0),
            slurm::number("SLURM_STEP_ID").value_or(0),
            0,
            user_name(),
            utc_now()};
  }

  // Always as long: a renewal is written over what it renews.
  std::string to_text() const {
    auto text = dump_any(Json{{"nonce", nonce},
                              {"process", process},
                              {"host", host},
                              {"user", user},
                              {"since", since},
                              {"job", job},
                              {"restart", restart},
                              {"step", step},
                              {"renewals", renewals}},
                         2);
    text.resize(std::max<std::size_t>(text.size(), 1023), ' ');
    return text + "\n";
  }

  std::string describe() const {
    if (process.empty()) return "an owner that LEASE does not name";
    const auto who = job ? fmt::format("job {} (process {} on {})", job, process, host)
                         : fmt::format("process {} on {}", process, host);
    return user.empty() ? who : fmt::format("{}, started by {} at {}", who, user, since);
  }

  // Slurm starts a job again only when its life before is over, as far as it knows.
  bool is_earlier_life(const Owner& later) const { return job != 0 && job == later.job && restart < later.restart; }

  // Of the same life: slurm/requeue.sh starts a step when the one before has ended, a person may start two.
  bool is_earlier_step(const Owner& later) const {
    return job != 0 && job == later.job && restart == later.restart && step < later.step;
  }
};

// What stands in the file, empty where it is there but cannot be read; nothing when there is none. StorageError when
// that cannot be told.
std::optional<std::string> read_lease(const std::filesystem::path& file) {
  try {
    return read_file(file);
  } catch (const StorageError&) {
    throw;
  } catch (const AccessError& error) {
    return error.why() == "ENOENT" ? std::nullopt : std::optional<std::string>("");
  }
}

// Nothing where the text makes no sense.
std::optional<Owner> parse_owner(const std::string& text) {
  try {
    const auto json = Json::parse(text);
    Owner owner{json.at("nonce"),    json.at("process"),     json.at("host"),
                json.at("job"),      json.at("restart"),     json.at("step"),
                json.at("renewals"), json.value("user", ""), json.value("since", "")};
    if (!owner.nonce.empty()) return owner;
  } catch (const std::exception&) {  // no JSON, or another
  }
  return std::nullopt;
}

constexpr const char* unknown_nonce = "unreadable";  // of an owner whose LEASE makes no sense

// Nothing when there is no file. Nonsense has an owner, too: somebody may have written into the file of a living one,
// whose renewals change it. A LEASE that a power failure has damaged stays as it is. StorageError when it cannot be
// told.
std::optional<Owner> find_owner(const std::filesystem::path& file) {
  const auto text = read_lease(file);
  if (!text) return std::nullopt;
  if (auto owner = parse_owner(*text)) return owner;
  Owner unknown;
  unknown.nonce = unknown_nonce;
  unknown.renewals = static_cast<std::int64_t>(hash64(*text));
  return unknown;
}

// The same where an owner that cannot be read is as good as none.
std::optional<Owner> try_find_owner(const std::filesystem::path& file) {
  try {
    return find_owner(file);
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

[[noreturn]] void refuse_told_to_stop(const std::string& folder) {
  fail(Exit::requeue, "told to stop while waiting for {}; nothing was written", folder);
}

// Returns when the folder is free, with the nonce of the owner that lost it, if any. What stays the same for
// `stale_after`, or for two renewals of a step before, belongs to nobody: no clocks are compared, which differ between
// machines.
std::string wait_until_free(const std::filesystem::path& file, const Owner& self, const LeaseTimes& times) {
  const auto folder = file.parent_path().string();
  const auto first = find_owner(file);
  if (!first) return "";
  const Stopwatch watch;
  for (bool told = false;; told = true) {
    const auto owner = find_owner(file);
    if (!owner)
      throw Error(Exit::requeue, fmt::format("{}: {}, which had it, has just ended", folder, first->describe()),
                  "start again: there may be a newer checkpoint now");
    if (process_is_gone(owner->process)) return owner->nonce;
    if (owner->is_earlier_life(self)) {
      log::warning("{}: taking it over from an earlier start of this job, {}", folder, owner->describe());
      return owner->nonce;
    }
    if (owner->nonce != first->nonce || owner->renewals != first->renewals)
      throw Error(Exit::usage, fmt::format("{} is in use by {}", folder, owner->describe()),
                  "stop that one first, or choose another folder (run.dir; of `evaluate`: --out)");
    const double stale_after = owner->is_earlier_step(self) ? 2.5 * times.renewed_every : times.stale_after;
    if (watch.seconds() > stale_after) {
      log::warning("{}: taking it over from {}, which has not been heard of for {:.0f} s", folder, owner->describe(),
                   watch.seconds());
      return owner->nonce;
    }
    if (stop::requested()) refuse_told_to_stop(folder);
    if (!told)
      log::info("{} was in use by {}; waiting up to {:.0f} s to see whether it still is", folder, owner->describe(),
                stale_after);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// What file systems answer that cannot link files, or not these two: FUSE, overlays and some network file systems
// differ in their words.
bool says_no_links(const std::error_code& error) {
  for (const auto answer :
       {std::errc::operation_not_permitted, std::errc::operation_not_supported, std::errc::function_not_supported,
        std::errc::cross_device_link, std::errc::invalid_argument, std::errc::too_many_links})
    if (error == answer) return true;
  return false;
}

// Makes `name` with what is in `fresh`; false where there is one already. On a file system that cannot link files, who
// comes last has it.
bool try_make(const std::filesystem::path& name, const std::filesystem::path& fresh, const Owner& self) {
  std::error_code error;
  std::filesystem::create_hard_link(fresh, name, error);
  if (says_no_links(error)) {
    write_file_atomically(name, self.to_text());
    return true;
  }
  // ENOENT: the one who was quicker has swept the folder. NFS may ask twice and find what it has made itself.
  if (error == std::errc::file_exists || error == std::errc::no_such_file_or_directory) {
    const auto owner = try_find_owner(name);
    return owner && owner->nonce == self.nonce;
  }
  if (!error) return true;
  errno = error.value();
  fail_errno("cannot make", name);
}

// Is gone at the end of its scope.
struct Temporary {
  std::filesystem::path path;
  ~Temporary() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
};

// Called like a half-written file, as which a later start removes what a killed one has left.
std::filesystem::path right_to_replace(const std::filesystem::path& file, const std::string& lost) {
  return fmt::format("{}.tmp-{:016x}-0", file.string(), hash64(lost));
}

// NOTE [Two starts at once] Of several instances that find the folder free one gets it, because LEASE can be made once.
// Of several that find the same owner gone, one gets the right to replace it: a file with that owner's nonce in its
// name can be made once at a time, and while it is there nobody else touches that owner's LEASE. Who was slow and makes
// it after the owner has been replaced sees so. `lost`: the owner's nonce, empty: there was none. True when the folder
// is ours now.
bool take(const std::filesystem::path& file, const Owner& self, const std::string& lost) {
  const Temporary fresh{file.string() + ".tmp-" + self.nonce};
  write_file_atomically(fresh.path, self.to_text());
  if (lost.empty()) return try_make(file, fresh.path, self);
  const auto right = right_to_replace(file, lost);
  if (!try_make(right, fresh.path, self)) return false;
  const Temporary gone_afterwards{right};
  if (const auto owner = find_owner(file); !owner || owner->nonce != lost) return false;
  if (std::rename(fresh.path.c_str(), file.c_str()) != 0) fail_errno("cannot rename to", file);
  return true;
}

// Waits for the folder and takes it.
void wait_and_take(const std::filesystem::path& file, const Owner& self, const LeaseTimes& times) {
  std::optional<Stopwatch> refused;  // since another start has had the right to replace this owner
  std::string owner;
  for (;;) {
    const auto lost = wait_until_free(file, self, times);
    if (take(file, self, lost)) return;
    if (lost != std::exchange(owner, lost)) refused.reset();
    if (stop::requested()) refuse_told_to_stop(file.parent_path().string());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::error_code ignored;
    if (!refused) refused.emplace();
    if (refused->seconds() > times.stale_after)  // who has the right was killed
      std::filesystem::remove(right_to_replace(file, lost), ignored);
  }
}

// NOTE [Renewing] Whoever takes a folder over makes a new LEASE and renames it to its place. A renewal by the former
// owner that comes late, from a node that was cut off, must not put that back: so it is no new file but written over
// the old one, which stays open and is nobody's by then.
class LeaseFile {
 public:
  explicit LeaseFile(const std::filesystem::path& path) : path_(path), fd_(open_file(path, O_WRONLY)) {
    if (fd_ < 0) fail_errno("cannot open", path_);
  }
  ~LeaseFile() { ::close(fd_); }
  LeaseFile(const LeaseFile&) = delete;
  LeaseFile& operator=(const LeaseFile&) = delete;

  void write(std::string_view text) const {
    if (::pwrite(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) || ::fsync(fd_) != 0)
      fail_errno("cannot write", path_);
  }

 private:
  const std::filesystem::path path_;
  const int fd_;
};

}  // namespace

struct RunLease::Impl {
  std::filesystem::path file;
  std::string nonce;
  std::optional<LeaseFile> own;  // rank 0
  std::jthread renewing;         // rank 0
  std::atomic<bool> is_lost{false};

  ~Impl() {
    if (!renewing.joinable()) return;
    renewing.request_stop();
    renewing.join();
    if (const auto owner = try_find_owner(file); owner && owner->nonce == nonce) {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  }

  bool is_ours() const {
    try {
      const auto owner = find_owner(file);  // none: another one has had it, and has ended
      return owner && (owner->nonce == nonce || owner->nonce == unknown_nonce);
    } catch (const StorageError&) {
      return true;
    }
  }

  // Where nobody has it, it is not known who has removed the file.
  std::string why_lost() const {
    if (const auto owner = try_find_owner(file); owner && owner->nonce != nonce)
      return fmt::format("{} has been taken over by {}", file.parent_path().string(), owner->describe());
    return fmt::format("{} is gone: the folder was moved or removed, or another instance has had it and has ended",
                       file.string());
  }

  void renew_until_stopped(const std::stop_token& stop, Owner self, double every) {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    const auto pause = std::chrono::duration<double>(every);
    while (!changed.wait_for(lock, stop, pause, [&] { return stop.stop_requested(); })) {
      if (!is_ours()) {
        log::error("{}; this instance ends and writes nothing more", why_lost());
        is_lost = true;
        stop::request(SIGTERM);
        return;
      }
      ++self.renewals;
      try {
        own->write(self.to_text());
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
  impl->file = run_dir / run_file::lease;
  on_root(world, [&] {
    const Owner self = Owner::self();
    impl->nonce = self.nonce;
    wait_and_take(impl->file, self, times);
    impl->own.emplace(impl->file);
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
  return !impl_->is_lost && impl_->is_ours();
}

std::string RunLease::why_lost() const {
  return impl_->why_lost();
}

}  // namespace millrace
