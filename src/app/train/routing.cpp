#include "train/routing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "millrace/core/error.h"

namespace millrace {

static std::vector<std::uint32_t> stripes_where(const std::vector<int>& of_stripe, int value) {
  std::vector<std::uint32_t> stripes;
  for (std::uint32_t stripe = 0; stripe < of_stripe.size(); ++stripe)
    if (of_stripe[stripe] == value) stripes.push_back(stripe);
  return stripes;
}

// What these stripes have in the list, each value once, in ascending order.
static std::vector<int> values_at(const std::vector<std::uint32_t>& stripes, const std::vector<int>& of_stripe) {
  std::set<int> found;
  for (const auto stripe : stripes) found.insert(of_stripe[stripe]);
  return {found.begin(), found.end()};
}

// Where the value of each of these stripes stands among those of all of them.
static std::map<std::uint32_t, int> places_at(const std::vector<std::uint32_t>& stripes,
                                              const std::vector<int>& of_stripe) {
  const auto values = values_at(stripes, of_stripe);
  std::map<std::uint32_t, int> places;
  for (const auto stripe : stripes) places[stripe] = position_in(values, of_stripe[stripe]);
  return places;
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
  return stripes_where(trainer_of_stripe, trainer);
}

std::vector<std::uint32_t> Routing::stripes_of_producer(int producer) const {
  return stripes_where(producer_of_stripe, producer);
}

std::vector<int> Routing::trainers_served_by(int producer) const {
  return values_at(stripes_of_producer(producer), trainer_of_stripe);
}

std::vector<int> Routing::producers_serving(int trainer) const {
  return values_at(stripes_of_trainer(trainer), producer_of_stripe);
}

std::map<std::uint32_t, int> Routing::trainer_places(int producer) const {
  return places_at(stripes_of_producer(producer), trainer_of_stripe);
}

std::map<std::uint32_t, int> Routing::producer_places(int trainer) const {
  return places_at(stripes_of_trainer(trainer), producer_of_stripe);
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

std::vector<int> peer_ranks(const Roles& roles, const Routing& routing, int rank) {
  ensure(!roles.all_in_one, "a rank that does both hands over to itself");
  if (roles.trains(rank)) return pick(roles.producers, routing.producers_serving(position_in(roles.trainers, rank)));
  return pick(roles.trainers, routing.trainers_served_by(position_in(roles.producers, rank)));
}

std::string describe_work(const Roles& roles, const Routing& routing, int rank) {
  const auto stripes = roles.trains(rank) ? routing.stripes_of_trainer(position_in(roles.trainers, rank))
                                          : routing.stripes_of_producer(position_in(roles.producers, rank));
  return fmt::format("{} of stripe{} {}", role_name(roles, rank), stripes.size() == 1 ? "" : "s",
                     describe_numbers({stripes.begin(), stripes.end()}));
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
