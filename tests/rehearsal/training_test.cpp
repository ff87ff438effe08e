// The engine over NCCL's part of the program: everything late, and every bit as over MPI.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/sharded_training.h"
#include "rehearsal.h"

namespace millrace {
namespace {

constexpr int steps = 3;

// Norms and weights after some steps.
torch::Tensor train(const Settings& settings) {
  Training training(settings);
  std::vector<torch::Tensor> all;
  for (int step = 0; step < steps; ++step)
    all.push_back(torch::tensor(std::vector<double>{training.step(step)}).to(torch::kFloat32));
  all.push_back(training.weights());
  return torch::cat(all);
}

// "number 3 of 1234 is nan, not 0.25; 7 differ": of what nobody has written yet, that is a NaN (pretended_gpu.h).
std::string first_difference(const torch::Tensor& actual, const torch::Tensor& expected) {
  const auto places = actual.ne(expected).nonzero();
  if (places.numel() == 0) return "none";
  const auto first = places[0].item<std::int64_t>();
  return fmt::format("number {} of {} is {}, not {}; {} differ", first, actual.numel(), actual[first].item<float>(),
                     expected[first].item<float>(), places.size(0));
}

using Case = std::tuple<Strategy, int, torch::Dtype, ReduceDtype>;

class RehearsedTraining : public testing::TestWithParam<Case> {};

TEST_P(RehearsedTraining, EqualsTheOneOverMpi) {
  const auto& [strategy, accumulation, dtype, reduce_dtype] = GetParam();
  for (const double bucket_mb : {1e-6, 1e-3, 1.0}) {
    Settings settings{.strategy = strategy, .bucket_mb = bucket_mb, .dtype = dtype, .accumulation = accumulation};
    settings.reduce_dtype = {reduce_dtype};
    const auto over_mpi = train(settings);
    settings.make_collectives = rehearse;
    const auto rehearsed = train(settings);
    EXPECT_TRUE(torch::equal(rehearsed, over_mpi))
        << "buckets of " << bucket_mb << ": " << first_difference(rehearsed, over_mpi);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, RehearsedTraining,
                         testing::Combine(testing::ValuesIn(strategies), testing::Values(1, 2, 4),
                                          testing::Values(torch::kFloat32, torch::kBFloat16),
                                          testing::Values(ReduceDtype::float32, ReduceDtype::bfloat16)));

// The groups of a hybrid: those of a row share a model, those of a column hold the same part of it. All of a rank's
// transfers go through one stream, and every rank takes the calls from the same dice.
class Grid {
 public:
  Grid()
      : world_(test_world().group()),
        columns_(std::min(2, world_.size())),
        row_(world_.split(world_.rank() / columns_, world_.rank())),
        column_(world_.split(world_.rank() % columns_, world_.rank())) {}
  std::vector<std::unique_ptr<Collectives>> collectives(const MakeCollectives& make) const {
    std::vector<std::unique_ptr<Collectives>> made;
    for (const auto& group : {row_, column_}) made.push_back(make(group));
    return made;
  }

 private:
  Group world_;
  int columns_;
  Group row_, column_;
};

// Some buffers through random transfers, in any order, joined now and then as the engine does: by a mark behind the
// last transfer that a buffer was in.
class Play {
 public:
  Play(const Grid& grid, const MakeCollectives& make, std::uint64_t seed)
      : collectives_(grid.collectives(make)), dice_(seed) {
    std::mt19937_64 own(seed + 100 * static_cast<std::uint64_t>(1 + test_world().rank()));
    for (auto& buffer : buffers_) {
      buffer.resize(count);
      std::ranges::generate(buffer, [&] { return std::uniform_real_distribution<float>(-1, 1)(own); });
    }
  }

  void turn() {
    const auto which = dice_() % collectives_.size(), place = dice_() % buffers_.size();
    auto& by = *collectives_[which];
    const Buffer whole = buffer_of(buffers_[place]), part = whole.part(by.rank(), by.size());
    join(place, dice_() % 2 == 0);
    switch (dice_() % 5) {
      case 0:
        by.all_reduce_sum(whole);
        break;
      case 1:
        by.reduce_scatter_sum(whole, part);
        break;
      case 2:
        by.all_gather(part, whole);
        break;
      case 3:
        by.broadcast(whole, static_cast<int>(dice_() % static_cast<std::uint64_t>(by.size())));
        break;
      default: {
        const auto beside = (place + 1) % buffers_.size();
        join(beside, true);
        by.together([&] {
          by.all_gather(part, whole);
          by.broadcast(buffer_of(buffers_[beside]), 0);
        });
        under_way_[beside] = {which, by.mark()};
      }
    }
    under_way_[place] = {which, by.mark()};
    if (dice_() % 7 == 0) by.wait();
    if (dice_() % 3 == 0) shrink(place);
  }

  std::vector<float> end() {
    std::vector<float> all;
    for (std::size_t place = 0; place < buffers_.size(); ++place) {
      join(place, true);
      all.insert(all.end(), buffers_[place].begin(), buffers_[place].end());
    }
    return all;
  }

 private:
  static constexpr std::size_t count = 4 * 3001;

  // Arithmetic between: sums of sums would leave float32 soon.
  void shrink(std::size_t place) {
    join(place, true);
    for (auto& value : buffers_[place]) value *= 0.3f;
  }
  void join(std::size_t place, bool wanted) {
    if (wanted) collectives_[under_way_[place].first]->join(under_way_[place].second);
  }

  std::vector<std::unique_ptr<Collectives>> collectives_;
  std::mt19937_64 dice_;
  std::array<std::vector<float>, 3> buffers_;
  std::array<std::pair<std::size_t, Collectives::Mark>, 3> under_way_{};
};

TEST(RehearsedTransfers, InAnyOrderEqualThoseOverMpi) {
  const char* given = std::getenv("MILLRACE_REHEARSAL_SEED");
  const auto first = given ? std::strtoull(given, nullptr, 10) : 1;
  const Grid grid;
  for (std::uint64_t seed = first; seed < first + 4; ++seed) {
    Play over_mpi(grid, make_host_collectives, seed), rehearsed(grid, rehearse, seed);
    for (int turn = 0; turn < 60; ++turn) {
      over_mpi.turn();
      rehearsed.turn();
    }
    EXPECT_EQ(rehearsed.end(), over_mpi.end()) << "MILLRACE_REHEARSAL_SEED=" << seed;
  }
}

}  // namespace
}  // namespace millrace
