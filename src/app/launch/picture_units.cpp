#include "launch/picture_units.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/units.h"

namespace millrace {

void for_each_unit(const Session& session, const PictureUnits& units, const std::vector<std::int64_t>& wanted,
                   const std::string& doing, const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  const auto& world = session.world.group();
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto pictures_of = [&](std::size_t first, std::size_t end) {
    std::int64_t pictures = 0;
    for (auto i = first; i < std::min(end, wanted.size()); ++i)
      pictures += units.end(wanted[i]) - units.begin(wanted[i]);
    return pictures;
  };
  const auto total = pictures_of(0, wanted.size());
  const Stopwatch watch;
  double told = 0;
  std::int64_t done = 0;
  for (std::size_t first = 0; first < wanted.size(); first += ranks) {
    const auto mine = first + static_cast<std::size_t>(world.rank());
    on_all(world, [&] {
      if (stop::requested()) fail(Exit::requeue, "told to stop while {}: what was not finished is made again", doing);
      if (mine < wanted.size()) work(units.begin(wanted[mine]), units.end(wanted[mine]));
    });
    done += pictures_of(first, first + ranks);
    const double seconds = watch.seconds(), rate = static_cast<double>(done) / std::max(seconds, 1e-9);
    const auto line = fmt::format("{}: {} of {}, {:.3g} a second, {} to go", doing, done, total, rate,
                                  format_time(static_cast<double>(total - done) / rate));
    if (!session.is_root()) continue;
    if (log::on_terminal()) {
      log::progress(line);
    } else if (seconds - told > 60) {
      log::info("{}", line);
      told = seconds;
    }
  }
  log::progress("");
}

void for_each_unit(const Session& session, const PictureUnits& units, const std::string& doing,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(units.count()));
  std::iota(all.begin(), all.end(), 0);
  for_each_unit(session, units, all, doing, work);
}

torch::Tensor gather_rows(const Group& group, const PictureUnits& units, const std::vector<torch::Tensor>& mine) {
  std::string bytes;
  torch::Dtype dtype = torch::kFloat32;
  for (const auto& rows : mine) {
    const auto flat = rows.contiguous();
    dtype = flat.scalar_type();
    bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  }
  const auto parts = group.gather_strings(bytes);
  if (!group.is_root()) return {};
  std::size_t total = 0;
  for (const auto& part : parts) total += part.size();
  const auto width = static_cast<std::int64_t>(total / c10::elementSize(dtype)) / units.pictures;
  auto all = torch::empty({units.pictures, width}, dtype);
  const auto row_bytes = static_cast<std::size_t>(width) * c10::elementSize(dtype);
  std::vector<std::size_t> taken(parts.size(), 0);
  for (std::int64_t unit = 0; unit < units.count(); ++unit) {
    const auto rank = static_cast<std::size_t>(unit % group.size());
    const auto size = static_cast<std::size_t>(units.end(unit) - units.begin(unit)) * row_bytes;
    std::memcpy(all[units.begin(unit)].mutable_data_ptr(), parts[rank].data() + taken[rank], size);
    taken[rank] += size;
  }
  return all;
}

}  // namespace millrace
