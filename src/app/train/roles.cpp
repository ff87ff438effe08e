#include "train/roles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "app_config.h"
#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {

bool Roles::trains(int rank) const {
  return std::find(trainers.begin(), trainers.end(), rank) != trainers.end();
}
bool Roles::produces(int rank) const {
  return std::find(producers.begin(), producers.end(), rank) != producers.end();
}

// Whole words, in any case of letters: "a10" is not in "NVIDIA A100", "a100" is in "NVIDIA A100-SXM4-40GB".
static bool contains_words(const std::string& text, const std::string& words) {
  const auto in = lower(text), part = lower(words);
  const auto is_cut = [&](std::size_t at) {  // between two letters or digits
    const auto is_word = [&](std::size_t i) { return std::isalnum(static_cast<unsigned char>(in[i])) != 0; };
    return at > 0 && at < in.size() && is_word(at - 1) && is_word(at);
  };
  for (auto at = in.find(part); at != std::string::npos; at = in.find(part, at + 1))
    if (!is_cut(at) && !is_cut(at + part.size())) return true;
  return false;
}

static Roles roles_by_gpu(const std::vector<std::string>& gpu_of_rank, const RolesConfig& config) {
  Roles roles;
  for (std::size_t rank = 0; rank < gpu_of_rank.size(); ++rank) {
    const auto& gpu = gpu_of_rank[rank];
    const bool produces = config.producer_gpu && contains_words(gpu, *config.producer_gpu);
    const bool trains = config.trainer_gpu ? contains_words(gpu, *config.trainer_gpu) : !produces;
    if (produces && trains)
      fail(Exit::usage, "rank {}: its GPU \"{}\" fits both roles.producer_gpu and roles.trainer_gpu", rank, gpu);
    if (!produces && config.producer_gpu && !trains)
      fail(Exit::usage, "rank {}: its GPU \"{}\" fits neither roles.producer_gpu nor roles.trainer_gpu", rank, gpu);
    (trains ? roles.trainers : roles.producers).push_back(static_cast<int>(rank));
  }
  return roles;
}

std::vector<int> ranks_that_lost_a_gpu(const std::vector<std::string>& gpu_of_rank, const RolesConfig& config) {
  if (!config.producer_gpu) return {};
  std::vector<int> without;
  bool has_trainer = false;  // a GPU that does not produce
  for (int rank = 0; const auto& gpu : gpu_of_rank) {
    if (gpu.empty()) without.push_back(rank);
    has_trainer |= !gpu.empty() && !contains_words(gpu, *config.producer_gpu);
    ++rank;
  }
  const bool some_have_one = without.size() < gpu_of_rank.size();
  return (config.trainer_gpu ? some_have_one : has_trainer) ? without : std::vector<int>();
}

Roles plan_roles(const std::vector<std::string>& gpu_of_rank, const RolesConfig& config) {
  const int ranks = static_cast<int>(gpu_of_rank.size());
  Roles roles;
  if (config.producer_gpu || config.trainer_gpu) {
    roles = roles_by_gpu(gpu_of_rank, config);
  } else if (config.producers.is_auto()) {
    roles = all_in_one_roles(ranks);
  } else {
    const int producers = config.producers.value_or(1);
    if (producers >= ranks)
      throw Error(Exit::usage, fmt::format("roles.producers = {} of {} ranks leaves none to train", producers, ranks),
                  "start more ranks, or leave roles.producers at auto: every rank then does both");
    for (int rank = 0; rank < ranks; ++rank)
      (rank < ranks - producers ? roles.trainers : roles.producers).push_back(rank);
  }
  if (roles.trainers.empty() || roles.producers.empty())
    throw Error(Exit::usage, fmt::format("{} trainers and {} producers", roles.trainers.size(), roles.producers.size()),
                "both roles need at least one rank: see roles.producer_gpu, roles.trainer_gpu, roles.producers");
  return roles;
}

Roles all_in_one_roles(int ranks) {
  Roles roles;
  roles.all_in_one = true;
  roles.trainers.resize(static_cast<std::size_t>(ranks));
  std::iota(roles.trainers.begin(), roles.trainers.end(), 0);
  roles.producers = roles.trainers;
  return roles;
}

bool is_first_on_host(const std::vector<int>& ranks, const std::vector<std::string>& hosts, int rank) {
  const auto first = std::ranges::find_if(ranks, [&](int other) { return hosts.at(other) == hosts.at(rank); });
  return first != ranks.end() && *first == rank;
}

int position_in(const std::vector<int>& list, int value) {
  return static_cast<int>(std::find(list.begin(), list.end(), value) - list.begin());
}

std::vector<int> pick(const std::vector<int>& values, const std::vector<int>& positions) {
  std::vector<int> picked;
  for (const int position : positions) picked.push_back(values[position]);
  return picked;
}

std::string role_name(const Roles& roles, int rank) {
  if (!roles.produces(rank)) return "trainer";
  return roles.trains(rank) ? "trainer and producer" : "producer";
}

// What a line has room for.
static constexpr std::size_t most_listed = 8;

std::string describe_numbers(const std::vector<int>& numbers) {
  std::vector<std::string> runs;
  for (std::size_t first = 0, end = 1; first < numbers.size(); first = end++) {
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    runs.push_back(end - first == 1 ? fmt::format("{}", numbers[first])
                                    : fmt::format("{}-{}", numbers[first], numbers[end - 1]));
  }
  if (runs.size() <= most_listed) return fmt::format("{}", fmt::join(runs, " "));
  runs.resize(most_listed);
  return fmt::format("{} ... ({} in all)", fmt::join(runs, " "), numbers.size());
}

std::string describe(const Roles& roles) {
  if (roles.all_in_one) return "every rank trains and produces";
  return fmt::format("trainers {}, producers {}", describe_numbers(roles.trainers), describe_numbers(roles.producers));
}

std::string describe_hosts(const std::vector<std::string>& hosts) {
  const std::set<std::string> names(hosts.begin(), hosts.end());
  if (names.size() > most_listed) return fmt::format("{} hosts", names.size());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace millrace
