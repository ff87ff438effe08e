#include "run/roles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {

void RolesConfig::describe(config::Section& section) {
  section
      .key("producers", producers,
           "how many ranks, the last ones, only produce; auto = by GPU model where one is named, else every rank does "
           "both")
      .at_least(1);
  section.key("producer_gpu", producer_gpu, "ranks whose GPU's name contains this as whole words produce, e.g. a10g");
  section.key("trainer_gpu", trainer_gpu, "ranks whose GPU's name contains this as whole words train, e.g. a100");
}

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

Roles plan_roles(const std::vector<std::string>& gpu_of_rank, const RolesConfig& config) {
  const int ranks = static_cast<int>(gpu_of_rank.size());
  Roles roles;
  if (config.producer_gpu || config.trainer_gpu) {
    roles = roles_by_gpu(gpu_of_rank, config);
  } else if (config.producers.is_auto()) {
    roles.all_in_one = true;
    roles.trainers.resize(ranks);
    std::iota(roles.trainers.begin(), roles.trainers.end(), 0);
    roles.producers = roles.trainers;
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

int Routing::trainers() const {
  return trainer_of_stripe.empty() ? 0 : trainer_of_stripe.back() + 1;
}

bool Routing::is_even() const {
  return trainer_of_stripe.empty() || trainer_of_stripe.size() % static_cast<std::size_t>(trainers()) == 0;
}

int Routing::largest_share(int global_batch) const {
  const int stripes = static_cast<int>(trainer_of_stripe.size());
  const int most = (stripes + trainers() - 1) / trainers();  // shares differ by one stripe at most
  return most * (global_batch / stripes);
}

std::vector<std::uint32_t> Routing::stripes_of_trainer(int trainer) const {
  std::vector<std::uint32_t> stripes;
  for (std::uint32_t stripe = 0; stripe < trainer_of_stripe.size(); ++stripe)
    if (trainer_of_stripe[stripe] == trainer) stripes.push_back(stripe);
  return stripes;
}

std::vector<std::uint32_t> Routing::stripes_of_producer(int producer) const {
  std::vector<std::uint32_t> stripes;
  for (std::uint32_t stripe = 0; stripe < producer_of_stripe.size(); ++stripe)
    if (producer_of_stripe[stripe] == producer) stripes.push_back(stripe);
  return stripes;
}

std::vector<int> Routing::trainers_served_by(int producer) const {
  std::set<int> found;
  for (const auto stripe : stripes_of_producer(producer)) found.insert(trainer_of_stripe[stripe]);
  return {found.begin(), found.end()};
}

std::vector<int> Routing::producers_serving(int trainer) const {
  std::set<int> found;
  for (const auto stripe : stripes_of_trainer(trainer)) found.insert(producer_of_stripe[stripe]);
  return {found.begin(), found.end()};
}

std::map<std::uint32_t, int> Routing::trainer_places(int producer) const {
  const auto trainers = trainers_served_by(producer);
  std::map<std::uint32_t, int> places;
  for (const auto stripe : stripes_of_producer(producer))
    places[stripe] = position_in(trainers, trainer_of_stripe[stripe]);
  return places;
}

std::map<std::uint32_t, int> Routing::producer_places(int trainer) const {
  const auto producers = producers_serving(trainer);
  std::map<std::uint32_t, int> places;
  for (const auto stripe : stripes_of_trainer(trainer))
    places[stripe] = position_in(producers, producer_of_stripe[stripe]);
  return places;
}

int position_in(const std::vector<int>& list, int value) {
  return static_cast<int>(std::find(list.begin(), list.end(), value) - list.begin());
}

std::vector<int> pick(const std::vector<int>& values, const std::vector<int>& positions) {
  std::vector<int> picked;
  for (const int position : positions) picked.push_back(values[position]);
  return picked;
}

Routing plan_routing(const Roles& roles, int stripes) {
  const int trainers = static_cast<int>(roles.trainers.size()), producers = static_cast<int>(roles.producers.size());
  if (trainers > stripes)
    throw Error(
        Exit::usage, fmt::format("{} trainers for {} stripes: some would have nothing to train", trainers, stripes),
        "use fewer trainers, set data.stripes to a divisor of batch.global that is not below them, or give more "
        "archives");
  if (producers > stripes)
    throw Error(Exit::usage,
                fmt::format("{} producers for {} stripes: some would have nothing to do", producers, stripes),
                "use fewer producers, set data.stripes to a divisor of batch.global that is not below them, or give "
                "more archives");
  Routing routing;
  for (int stripe = 0; stripe < stripes; ++stripe) {
    const int trainer = static_cast<int>(std::int64_t{stripe} * trainers / stripes);
    routing.trainer_of_stripe.push_back(trainer);
    routing.producer_of_stripe.push_back(roles.all_in_one ? trainer : stripe % producers);
  }
  return routing;
}

std::string describe(const Roles& roles) {
  if (roles.all_in_one) return "every rank trains and produces";
  return fmt::format("trainers {}, producers {}", fmt::join(roles.trainers, " "), fmt::join(roles.producers, " "));
}

std::string describe_shares(const Routing& routing) {
  if (routing.is_even()) return {};
  std::vector<std::size_t> shares(static_cast<std::size_t>(routing.trainers()));
  for (const int trainer : routing.trainer_of_stripe) ++shares[static_cast<std::size_t>(trainer)];
  constexpr std::size_t max_listed = 64;
  if (shares.size() <= max_listed) return fmt::format("stripes {}", fmt::join(shares, " "));
  const auto [fewest, most] = std::ranges::minmax(shares);
  return fmt::format("stripes {} on {} trainers, {} on {}", most, std::ranges::count(shares, most), fewest,
                     std::ranges::count(shares, fewest));
}

}  // namespace millrace
