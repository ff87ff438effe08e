#pragma once
#include <functional>
#include <string>

#include "run_table.h"

// The parts of a report. One without blocks has nothing to tell and is left out.
namespace millrace {

Section summary_section(Runs runs);
// What holds the runs back, and how fast a GPU is beside those of others.
Section speed_section(Runs runs);
Section training_section(Runs runs);
Section rejected_section(Runs runs);
Section pictures_section(Runs runs);
Section evaluation_section(Runs runs);
// The lives of runs that were started more than once: how each ended, and what was other in the next.
Section starts_section(Runs runs);
Section events_section(Runs runs);
Section environment_section(Runs runs);
Section configuration_section(Runs runs);

// A curve per run; its name only where there are several.
Plot plot_of(Runs runs, const std::string& title, const std::string& unit,
             const std::function<Series(const RunRecord&)>& series_of);
Plot plot_of(Runs runs, const std::string& title, const std::string& unit, const std::string& field);

// Whether the run, as it was started last, weights samples by objective.snr_gamma.
bool weights_losses(const RunRecord& run);
// Whether it ever did, and says what they are without that.
bool tells_unweighted_losses(const RunRecord& run);
// With all samples alike, which compares among runs. Weighted lines of earlier versions do not tell it.
Series unweighted_validation_loss(const RunRecord& run);

// usual() of the newest start, which may have other ranks and settings than those before, once it has logged enough.
double usual_now(const RunRecord& run, const Series& series);
// Of a step, what trainers wait for samples.
double waiting_now(const RunRecord& run);

// The ranks that train, by environment.json of the newest start.
struct Trainers {
  int count = 0;  // 0: it is not known
  bool on_gpu = false;
  bool also_encode = false;
  std::string device;  // "NVIDIA H100 80GB HBM3"; several kinds: "A, B"
};
Trainers trainers_of(const RunRecord& run);

}  // namespace millrace
