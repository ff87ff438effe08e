#pragma once
#include <atomic>
#include <cstdint>

// What this process is doing, for whoever has to say where it stood: fault files, deadlines. Set by the thread that
// does it, read by any.
namespace millrace::phase {

// Names stay the same: scripts read them.
inline constexpr const char* starting = "starting";
inline constexpr const char* loading = "loading";
inline constexpr const char* waiting_for_samples = "waiting for samples";
inline constexpr const char* first_step = "first step";  // may compile and tune for a while
inline constexpr const char* training = "training";
inline constexpr const char* accounting = "accounting";  // between steps: metrics, ids, the ledger
inline constexpr const char* producing = "producing";
inline constexpr const char* filling = "filling the cache";  // preprocess
inline constexpr const char* validating = "validating";
inline constexpr const char* painting = "painting";
inline constexpr const char* saving = "saving";
inline constexpr const char* ending = "ending";
inline constexpr const char* checking = "in preflight";  // whose checks have limits of their own

// Loading, the first step, validation, pictures, saves and a batch of `filling` may take so many times
// guard.hang_timeout.
inline constexpr double slow_factor = 5;

inline std::atomic<const char*> current{starting};
inline std::atomic<std::int64_t> step{0};          // of the phase and of log lines (log::set_step); 0 = none
inline std::atomic<std::int64_t> steps_taken{0};   // by this process's trainer; parcels sent by a producer
inline std::atomic<const char*> awaited{nullptr};  // the collective in which this process waits for others
inline std::atomic<std::uint64_t> moves{0};        // counts up whenever a wait or a micro-batch has ended
inline std::atomic<int> log_writers{0};            // threads that write a line of the log, which may be on a slow disk
inline std::atomic<double> waited_seconds{0};      // in collectives, since the start of this process

}  // namespace millrace::phase
