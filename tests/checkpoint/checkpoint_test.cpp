// Checkpoints written by all ranks of the test, read by all and by each rank on its own.
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <regex>
#include <thread>

#include "core/file_size_limit.h"
#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/restore.h"
#include "millrace/checkpoint/tensors.h"
#include "millrace/checkpoint/writer.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/phase.h"
#include "millrace/nn/layers.h"
#include "millrace/parallel/storage_order.h"
#include "mpi_devices.h"
#include "own_log.h"
#include "snapshot.h"
#include "tools/faults.h"
#include "train/run_folder.h"

namespace millrace {
namespace {

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("out", out);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.3);
    conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  }
  nn::Conv2d conv = nn::Conv2d(3, 5, 3);
  nn::GroupNorm norm = nn::GroupNorm(1, 5, 1e-5);
  nn::Linear out = nn::Linear(7, 3);
};
TORCH_MODULE(SmallNet);

using Tensors = std::map<std::string, torch::Tensor>;

// The gradient that every rank gives to a parameter in a step.
torch::Tensor gradient_of(const std::string& name, at::IntArrayRef shape, int step) {
  torch::manual_seed(std::hash<std::string>{}(name) + static_cast<std::uint64_t>(step));
  return torch::randn(shape);
}

// A net and its optimizer on the ranks of a group.
struct Training {
  explicit Training(const Group& group, int seed, bool with_ema = true)
      : Training(group, seed, torch::kCPU, with_ema) {}
  Training(const Group& group, int seed, torch::Device device, bool with_ema = true)
      : Training(group, seed, device, {Strategy::shard_grad_op, group.size(), 1}, with_ema) {}
  Training(const Group& group, int seed, torch::Device device, ShardPlan shards, bool with_ema = true)
      : net(make_net(seed, device)),
        plan(shards),
        model(*net, parameter_names(*net), plan, parallel, group),
        optimizer(model, OptimConfig{.lr = 1e-2}, EmaConfig{.enabled = with_ema, .decay = 0.5, .warmup = false}) {}

  static SmallNet make_net(int seed, torch::Device device) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    SmallNet net;
    net->to(device);
    return net;
  }

  // The sum over equal gradients is exact for 1, 2 and 4 ranks, so these make the same step (sums_are_exact).
  void step(int number) {
    model.begin_gradients(1);
    auto loss = torch::zeros({}, net->out->bias.device());
    for (const auto& item : net->named_parameters())
      loss = loss + (item.value() * gradient_of(item.key(), item.value().sizes(), number).to(loss.device())).sum();
    (loss / model.trainers().size()).backward();
    model.finish_gradients();
    optimizer.step(1e-2);
  }

  // On the host.
  Tensors weights() const {
    Tensors all;
    for (const auto& item : net->named_parameters()) all[item.key()] = item.value().detach().clone().cpu();
    return all;
  }

  SmallNet net;
  ParallelConfig parallel{.bucket_mb = 0.0002};  // several buckets
  ShardPlan plan;
  ShardedModel model;
  ShardedAdamW optimizer;
};

bool sums_are_exact() {
  return test_world().size() != 3;
}

RunState state_at(std::int64_t step) {
  RunState state;
  state.step = step;
  state.samples = 8 * step;
  state.updates = state.ema_updates = step;
  state.cursors[3] = {.epoch = 1, .split = 2, .row = 3, .given = 4};
  return state;
}

bool save(CheckpointWriter& writer, const Training& training, std::int64_t step) {
  writer.start(training.model, training.optimizer, state_at(step), {{"kind", "unet"}});
  const bool published = writer.commit();
  writer.settle();
  return published;
}

// On rank 0 alone; the others wait. Failures are noted, not thrown.
template <class Body>
void on_rank_0(Body&& body) {
  const auto& group = test_world().group();
  group.barrier();
  if (group.rank() == 0) body();
  group.barrier();
}

template <class Body>
std::string io_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io) << error.what();
    return error.what();
  }
  return "no error";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

bool all_equal(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && torch::equal(x.second, y.second);
  });
}

class CheckpointOnDevice : public test::OnDeviceOfRanks {};
MILLRACE_ON_DEVICES(CheckpointOnDevice);

TEST_P(CheckpointOnDevice, HoldsLogicalTensorsWhateverTheNumberOfRanks) {
  RunFolder run;
  Training training(test_world().group(), 1, device());
  const auto first = training.weights();
  training.step(1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  const bool published = save(writer, training, 1);
  const auto weights = training.weights();

  EXPECT_TRUE(published);
  EXPECT_EQ(writer.last_step(), 1);
  const auto reader = CheckpointReader::open(run.checkpoint(1));
  EXPECT_EQ(reader.manifest().at("kind"), "unet");
  EXPECT_EQ(reader.state().to_json(), state_at(1).to_json());
  EXPECT_EQ(reader.names("weights").size(), weights.size());
  CheckpointTensors held(reader);
  for (const auto& [name, weight] : weights) {
    const auto gradient = gradient_of(name, weight.sizes(), 1);
    EXPECT_TRUE(torch::equal(held.tensor("weights", name), weight)) << name;
    EXPECT_TRUE(torch::allclose(held.tensor("ema", name), 0.5 * first.at(name) + 0.5 * weight, 1e-6, 1e-7)) << name;
    EXPECT_TRUE(torch::allclose(held.tensor("exp_avg", name), 0.1 * gradient, 1e-5, 1e-8)) << name;
    EXPECT_TRUE(torch::allclose(held.tensor("exp_avg_sq", name), 1e-3 * gradient.square(), 1e-5, 1e-9)) << name;
  }
}

// Bit for bit on a GPU as well: gradients of this loss are given, and the optimizer's kernel adds nothing up.
TEST_P(CheckpointOnDevice, GoesOnAsIfNeverStoppedOnOneRankAndOnAll) {
  RunFolder run;
  Training training(test_world().group(), 1, device());
  training.step(1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  writer.start(training.model, training.optimizer, state_at(1), {});
  training.step(2);  // while the file is being written: it holds step 1 all the same
  const bool published = writer.commit();

  const auto reader = CheckpointReader::open(run.checkpoint(1));
  Training together(test_world().group(), 2, device()), alone(Group(), 3, device()), on_cpu(Group(), 4);
  restore(reader, together.optimizer);
  restore(reader, alone.optimizer);
  restore(reader, on_cpu.optimizer);
  EXPECT_TRUE(all_equal(alone.weights(), on_cpu.weights()));
  for (const auto& [kind, shards] : on_cpu.optimizer.state())
    for (std::size_t b = 0; b < shards.size(); ++b)
      EXPECT_TRUE(torch::equal(alone.optimizer.state().at(kind)[b].cpu(), shards[b])) << kind << ", bucket " << b;
  together.step(2);
  alone.step(2);
  EXPECT_TRUE(published);
  EXPECT_EQ(alone.optimizer.updates(), 2);
  EXPECT_EQ(alone.optimizer.ema_updates(), 2);
  EXPECT_TRUE(all_equal(together.weights(), training.weights()));
  EXPECT_TRUE(!sums_are_exact() || all_equal(alone.weights(), training.weights()));
}

// How the ranks of the test can share a state.
std::vector<ShardPlan> shard_plans() {
  const int ranks = test_world().size();
  std::vector<ShardPlan> plans{{Strategy::ddp, 1, ranks}, {Strategy::shard_grad_op, ranks, 1}};
  if (ranks == 4) plans.push_back({Strategy::hybrid, 2, 2});
  return plans;
}

std::string describe(const ShardPlan& plan) {
  return fmt::format("{} shards, {} replicas", plan.shards, plan.replicas);
}

// Whoever wrote it in however many files, with or without room for a copy; whoever reads it.
TEST_P(CheckpointOnDevice, GoesOnAsIfNeverStoppedHoweverItIsSharedOut) {
  const auto& group = test_world().group();
  for (const auto& written : shard_plans())
    for (const int max_files : {64, 2, 1})
      for (const bool room : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, {} files at most, {}", describe(written), max_files, room ? "room" : "no room"));
        RunFolder run;
        Training training(group, 1, device(), written);
        training.step(1);
        const auto first = training.weights();
        CheckpointWriter::Options options{.max_files = max_files};
        if (!room) options.free_memory = 0;
        CheckpointWriter writer(run.path(), group, {}, options);
        writer.start(training.model, training.optimizer, state_at(1), {});
        training.step(2);
        const bool published = writer.commit();
        writer.settle();
        EXPECT_TRUE(published);
        const auto reader = CheckpointReader::open(run.checkpoint(1), group);
        const std::size_t most = room ? static_cast<std::size_t>(max_files) : static_cast<std::size_t>(group.size());
        EXPECT_LE(reader.files().size(), most);
        for (const auto& read : shard_plans()) {
          SCOPED_TRACE("read as " + describe(read));
          Training again(group, 2 + group.rank(), device(), read);
          restore(reader, again.optimizer);
          EXPECT_EQ(again.optimizer.updates(), 1);
          EXPECT_TRUE(all_equal(again.weights(), first));
          again.step(2);
          EXPECT_TRUE(!sums_are_exact() || all_equal(again.weights(), training.weights()));
        }
      }
}

// Each trainer sees no file but the one that it wrote: it verifies it, and finds all that it restores there. The last
// of four has no part of so small a net, and no file.
TEST_P(CheckpointOnDevice, IsReadOnceByTrainersThatShareAsItsWritersDid) {
  const auto& group = test_world().group();
  for (const auto& plan : shard_plans()) {
    SCOPED_TRACE(describe(plan));
    RunFolder run;
    Training training(group, 1, device(), plan);
    training.step(1);
    CheckpointWriter writer(run.path(), group, {}, {});
    auto state = state_at(1);
    if (group.rank() == 0) state.ledger = "{}";
    writer.start(training.model, training.optimizer, state, {});
    EXPECT_TRUE(writer.commit());
    writer.settle();

    const test::TempDir sight;
    const auto seen = sight.path() / run.checkpoint(1).filename();
    std::filesystem::copy(run.checkpoint(1), seen);
    for (int rank = 0; rank < group.size(); ++rank)
      if (rank != group.rank())
        std::filesystem::remove(seen / fmt::format("shard-{:05d}-of-{:05d}.safetensors", rank, group.size()));
    Training again(group, 2 + group.rank(), device(), plan);
    restore(CheckpointReader::open(seen, group), again.optimizer);
    EXPECT_TRUE(all_equal(again.weights(), training.weights()));
  }
}

// The others, producers for one, read nothing: each of two trainers among four ranks sees its own file alone.
TEST(Checkpoint, IsVerifiedByThoseWhoRestoreIt) {
  if (test_world().size() != 4) GTEST_SKIP() << "needs four ranks";
  const auto& world = test_world().group();
  const std::vector<int> trainers = {1, 3};
  const bool trains = world.rank() % 2 == 1;
  const auto own = world.split(trains, world.rank());
  RunFolder run;
  std::optional<Training> training;
  if (trains) {
    training.emplace(own, 1);
    training->step(1);
    CheckpointWriter writer(run.path(), own, {}, {});
    EXPECT_TRUE(save(writer, *training, 1));
  }
  world.barrier();
  const test::TempDir sight;
  const auto seen = sight.path() / run.checkpoint(1).filename();
  std::filesystem::copy(run.checkpoint(1), seen);
  for (int file = 0; file < 2; ++file)
    if (!trains || file != own.rank())
      std::filesystem::remove(seen / fmt::format("shard-{:05d}-of-00002.safetensors", file));
  const auto reader = CheckpointReader::open(seen, world, trainers);
  if (!trains) return;
  Training again(own, 2 + own.rank());
  restore(reader, again.optimizer);
  EXPECT_TRUE(all_equal(again.weights(), training->weights()));
}

TEST(Checkpoint, IsVerifiedInEqualShares) {
  const auto verifiers = [](std::vector<std::string> names, int ranks) {
    std::vector<CheckpointFile> files;
    for (auto& name : names) files.push_back({std::move(name), 1, ""});
    return verifiers_of(files, ranks);
  };
  using Ranks = std::vector<int>;
  const std::string a = "a.safetensors", ledger = "ledger.json";
  EXPECT_EQ(verifiers({a, ledger, a, a, a}, 4), (Ranks{0, 0, 1, 2, 3}));
  EXPECT_EQ(verifiers({a, a, a, ledger, a, a}, 2), (Ranks{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(verifiers({a, a}, 16), (Ranks{0, 8}));  // on two nodes
  EXPECT_EQ(verifiers({a, a, a}, 1), (Ranks{0, 0, 0}));
  EXPECT_EQ(verifiers({ledger}, 3), Ranks{0});
}

// Numbers that follow from where an element is in its tensor, not from who holds it.
std::vector<float> numbers_of(const std::string& kind, const Slice& slice) {
  std::vector<float> numbers;
  for (auto i = slice.begin; i < slice.end; ++i)
    numbers.push_back(
        static_cast<float>(std::hash<std::string>{}(fmt::format("{} {} {}", kind, slice.name, i)) % 9973));
  return numbers;
}

void fill(Training& training) {
  for (const auto& [kind, shards] : training.optimizer.state())
    for (const auto& slice : slices_of_shard(training.model.layout(), training.model.shard())) {
      const auto numbers = numbers_of(kind, slice);
      shards[slice.bucket].narrow(0, slice.shard_offset, slice.end - slice.begin).copy_(torch::tensor(numbers));
    }
  training.optimizer.publish_weights();
}

void expect_filled(const CheckpointReader& reader, const Training& training) {
  CheckpointTensors held(reader);
  for (const std::string kind : {"weights", "ema", "exp_avg", "exp_avg_sq"})
    for (const auto& spec : training.model.layout().parameters) {
      const Slice whole{spec.name, spec.shape, spec.channels_last, 0, spec.elements(), 0, 0};
      const auto expected = from_storage_order(torch::tensor(numbers_of(kind, whole)), spec.shape, spec.channels_last);
      EXPECT_TRUE(torch::equal(held.tensor(kind, spec.name), expected)) << kind << " of " << spec.name;
    }
}

std::vector<ShardPlan> plans_for(int ranks) {
  std::vector<ShardPlan> plans{
      {Strategy::ddp, 1, ranks}, {Strategy::shard_grad_op, ranks, 1}, {Strategy::full_shard, ranks, 1}};
  if (ranks == 4) plans.push_back({Strategy::hybrid, 2, 2});
  return plans;
}

// Of a test's first ranks. Collective over all ranks.
struct FirstRanks {
  explicit FirstRanks(int count)
      : has_me(test_world().rank() < count), group(test_world().group().split(has_me, test_world().rank())) {}
  bool has_me;
  Group group;
};

// From any number of ranks with any strategy to any other number with any other, and on disk again: the same bits.
// Pairs that leave ranks idle are those of a test on fewer.
TEST(Checkpoint, MovesBetweenAllNumbersOfRanksAndStrategies) {
  for (int writers = 1; writers <= test_world().size(); ++writers)
    for (const auto& written : plans_for(writers)) {
      RunFolder run;
      const FirstRanks first(writers);
      if (first.has_me) {
        Training training(first.group, 1, torch::kCPU, written);
        fill(training);
        CheckpointWriter writer(run.path(), first.group, {}, {});
        EXPECT_TRUE(save(writer, training, 1));
        expect_filled(CheckpointReader::open(run.checkpoint(1)), training);
      }
      test_world().group().barrier();
      for (int readers = writers == test_world().size() ? 1 : test_world().size(); readers <= test_world().size();
           ++readers)
        for (const auto& read : plans_for(readers)) {
          SCOPED_TRACE(fmt::format("{} of {} ranks, then {} of {}", to_string(written.strategy), writers,
                                   to_string(read.strategy), readers));
          RunFolder again;
          const FirstRanks second(readers);
          if (second.has_me) {
            Training training(second.group, 2 + test_world().rank(), torch::kCPU, read);
            restore(CheckpointReader::open(run.checkpoint(1)), training.optimizer);
            CheckpointWriter writer(again.path(), second.group, {}, {});
            EXPECT_TRUE(save(writer, training, 2));
            expect_filled(CheckpointReader::open(again.checkpoint(2)), training);
          }
          test_world().group().barrier();
        }
    }
}

// The memory of the copy is used again.
TEST_P(CheckpointOnDevice, EachOfManyHoldsItsOwnStep) {
  RunFolder run;
  Training training(test_world().group(), 1, device());
  CheckpointWriter writer(run.path(), test_world().group(), {}, {.keep = 9});
  std::vector<Tensors> weights;
  for (int step = 1; step <= 5; ++step) {
    training.step(step);
    weights.push_back(training.weights());
    auto state = state_at(step);
    if (test_world().rank() == 0) state.ledger = fmt::format("{{\"step\": {}}}", step);
    writer.start(training.model, training.optimizer, state, {});  // commits the one before
  }
  writer.commit();
  for (int step = 1; step <= 5; ++step) {
    const auto reader = CheckpointReader::open(run.checkpoint(step));
    EXPECT_EQ(reader.ledger(), fmt::format("{{\"step\": {}}}", step));
    CheckpointTensors held(reader);
    for (const auto& [name, weight] : weights[static_cast<std::size_t>(step - 1)])
      EXPECT_TRUE(torch::equal(held.tensor("weights", name), weight)) << step << " " << name;
  }
}

TEST(Checkpoint, WrittenByOneRankIsReadByAll) {
  RunFolder run;
  Training alone(Group(), 1);  // the same on every rank
  alone.step(1);
  on_rank_0([&] {
    CheckpointWriter writer(run.path(), Group(), {}, {});
    EXPECT_TRUE(save(writer, alone, 1));
  });
  Training together(test_world().group(), 2);
  restore(CheckpointReader::open(run.checkpoint(1)), together.optimizer);
  EXPECT_TRUE(all_equal(together.weights(), alone.weights()));
  together.step(2);
  alone.step(2);
  EXPECT_TRUE(!sums_are_exact() || all_equal(together.weights(), alone.weights()));
}

TEST_P(CheckpointOnDevice, WithoutEmaStartsItFromTheWeights) {
  RunFolder run;
  Training plain(test_world().group(), 1, device(), /*with_ema=*/false), with_ema(test_world().group(), 2, device());
  plain.step(1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  save(writer, plain, 1);
  const auto reader = CheckpointReader::open(run.checkpoint(1));
  restore(reader, with_ema.optimizer);
  EXPECT_FALSE(reader.has("ema"));
  const auto& state = with_ema.optimizer.state();
  for (int bucket = 0; bucket < with_ema.model.buckets(); ++bucket)
    EXPECT_TRUE(torch::equal(state.at("ema")[bucket], state.at("weights")[bucket]));
  EXPECT_EQ(with_ema.optimizer.updates(), 1);
  EXPECT_EQ(with_ema.optimizer.ema_updates(), 0) << "its warm-up begins, whatever the run has counted before";
}

void damage(const std::filesystem::path& file, std::int64_t at) {
  auto bytes = read_file(file);
  bytes.at(static_cast<std::size_t>(at < 0 ? static_cast<std::int64_t>(bytes.size()) + at : at)) ^= 0x10;
  std::ofstream(file, std::ios::binary) << bytes;
}

std::string first_shard(const Training& training) {
  return fmt::format("shard-00000-of-{:05d}.safetensors", training.plan.shards);
}

TEST(Checkpoint, DamageIsRefusedAndTheFileNamed) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  save(writer, training, 1);
  on_rank_0([&] {
    const auto sound = run.checkpoint(1), broken = run.path() / "broken";
    const auto shard = first_shard(training);
    auto error_after = [&](auto&& change) {
      std::filesystem::remove_all(broken);
      std::filesystem::copy(sound, broken);
      change();
      return io_error([&] { CheckpointReader::open(broken); });
    };
    EXPECT_EQ(error_after([] {}), "no error");
    EXPECT_CONTAINS(error_after([&] { damage(broken / shard, -1); }), (broken / shard).string() + " is damaged");
    EXPECT_CONTAINS(error_after([&] { damage(broken / shard, 0); }), (broken / shard).string());
    EXPECT_CONTAINS(error_after([&] { std::filesystem::resize_file(broken / shard, 100); }),
                    (broken / shard).string() + " has 100 bytes");
    EXPECT_CONTAINS(error_after([&] { std::filesystem::remove(broken / shard); }),
                    (broken / shard).string() + " is missing");
    EXPECT_CONTAINS(error_after([&] { damage(broken / "MANIFEST.json", 5); }),
                    "MANIFEST.json does not match its digest");
    EXPECT_CONTAINS(error_after([&] { std::filesystem::resize_file(broken / "MANIFEST.json", 0); }), "MANIFEST.json");
    EXPECT_CONTAINS(error_after([&] { std::filesystem::remove(broken / "MANIFEST.json"); }), "MANIFEST.json");
    EXPECT_CONTAINS(error_after([&] { std::filesystem::remove(broken / "MANIFEST.xxh3"); }), "MANIFEST.xxh3");
    // A whole but foreign manifest with its own digest.
    for (const std::string text :
         {"[]", "{}", "not json", "{\"format\":1}", "{\"format\":3,\"files\":[]}", "{\"format\":1,\"files\":[3]}",
          "{\"format\":\"x\"}", "{\"format\":1,\"files\":[],\"tensors\":{}}",
          "{\"format\":2,\"files\":[{\"name\":\"../x\",\"bytes\":1,\"xxh3_128\":\"\"}],\"tensors\":{}}"}) {
      const auto error = error_after([&] {
        write_file_atomically(broken / "MANIFEST.json", text);
        write_file_atomically(broken / "MANIFEST.xxh3", hash128(text).hex() + "  MANIFEST.json\n");
      });
      EXPECT_CONTAINS(error, broken.string()) << text;
    }
    // A manifest that tells of tensors the files do not hold.
    const auto error_with = [&](auto&& edit) {
      return error_after([&] {
        auto manifest = nlohmann::json::parse(read_file(broken / "MANIFEST.json"));
        edit(manifest["tensors"].begin().value());
        write_file_atomically(broken / "MANIFEST.json", manifest.dump());
        write_file_atomically(broken / "MANIFEST.xxh3", hash128(manifest.dump()).hex() + "  MANIFEST.json\n");
      });
    };
    EXPECT_EQ(error_with([](auto&) {}), "no error");
    EXPECT_CONTAINS(error_with([](auto& tensor) { tensor["shape"] = {1000, 1000}; }), "is incomplete");
    EXPECT_CONTAINS(error_with([](auto& tensor) { tensor["shape"] = {1}; }), "do not fit its shape");
    EXPECT_CONTAINS(error_with([](auto& tensor) { tensor["parts"][0]["begin"] = -4; }), "do not fit its shape");
    EXPECT_CONTAINS(error_with([](auto& tensor) { tensor["parts"][0]["file"] = "../other"; }), "not among its files");
    EXPECT_CONTAINS(error_with([](auto& tensor) { tensor.erase("channels_last"); }), "MANIFEST.json");
  });
}

// In words of its own: that a parser stumbles would be luck.
bool tells_damage(const std::string& error) {
  static const std::regex words("digest|is damaged|has \\d+ bytes|is missing");
  return std::regex_search(error, words);
}

// Whatever a disk does to any of its files. Kept seeds: 0 to 1999.
TEST(Checkpoint, ADamagedByteIsFoundWhereverItIs) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  auto state = state_at(1);
  state.ledger = R"({"archives": [["a", 3]], "seen": {"a": [[0, 3]]}})";
  writer.start(training.model, training.optimizer, state, {{"kind", "unet"}});
  writer.commit();
  on_rank_0([&] {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(run.checkpoint(1))) files.push_back(entry.path());
    std::ranges::sort(files);
    for (unsigned seed = 0; seed < 2000; ++seed) {
      std::mt19937 random(seed);
      const auto& file = files[random() % files.size()];
      const std::string before = read_file(file);
      std::string after = before;
      const std::size_t at = random() % after.size();
      switch (random() % 4) {
        case 0:
          after[at] = static_cast<char>(after[at] ^ (1 << random() % 8));
          break;
        case 1:
          after.resize(at);
          break;
        case 2:
          after += static_cast<char>(random());
          break;
        default:  // a block that was never written
          std::fill(after.begin() + static_cast<std::ptrdiff_t>(at),
                    after.begin() + static_cast<std::ptrdiff_t>(std::min(at + 64, after.size())), '\0');
      }
      std::ofstream(file, std::ios::binary | std::ios::trunc) << after;
      const auto error = io_error([&] { CheckpointReader::open(run.checkpoint(1)); });
      EXPECT_EQ(error == "no error", after == before) << "seed " << seed << " in " << file;
      EXPECT_TRUE(after == before || tells_damage(error)) << "seed " << seed << " in " << file << ": " << error;
      std::ofstream(file, std::ios::binary | std::ios::trunc) << before;
    }
    EXPECT_EQ(io_error([&] { CheckpointReader::open(run.checkpoint(1)); }), "no error");
  });
}

// Each rank looks at a part of the files; what one finds, all hear.
TEST(Checkpoint, DamageThatOneRankFindsIsKnownToAll) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  save(writer, training, 1);
  const auto sound = CheckpointReader::open(run.checkpoint(1));
  for (const auto& file : sound.files()) {
    const auto path = run.checkpoint(1) / file.name;
    on_rank_0([&] { damage(path, -3); });
    EXPECT_CONTAINS(io_error([&] { CheckpointReader::open(run.checkpoint(1), test_world().group()); }),
                    path.string() + " is damaged");
    on_rank_0([&] { damage(path, -3); });
  }
  EXPECT_EQ(io_error([&] { CheckpointReader::open(run.checkpoint(1), test_world().group()); }), "no error");
}

TEST(Checkpoint, AnotherModelIsRefused) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  save(writer, training, 1);
  const auto reader = CheckpointReader::open(run.checkpoint(1));
  struct OtherNet : torch::nn::Module {
    explicit OtherNet(const char* name) { register_module(name, nn::Linear(6, 3)); }
  };
  for (const char* name : {"out", "extra"}) {
    OtherNet other(name);
    ParallelConfig parallel;
    ShardedModel model(other, parameter_names(other), plan_shards(parallel, {"n1"}), parallel, Group());
    ShardedAdamW optimizer(model, {}, {});
    EXPECT_CONTAINS(io_error([&] { restore(reader, optimizer); }), name);
  }
}

TEST(FindCheckpoint, TakesTheNewestValidOneOnEveryRank) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  const auto& group = test_world().group();
  const auto none = find_checkpoint(run.path(), group);
  for (int step : {5, 20}) save(writer, training, step);
  on_rank_0([&] {
    std::filesystem::create_directory(run.checkpoint(30));                    // empty: a crash before the manifest
    std::filesystem::create_directory(run.checkpoint(40).string() + ".tmp");  // not a checkpoint at all
  });
  const auto found = find_checkpoint(run.path(), group);
  on_rank_0([&] { damage(run.checkpoint(20) / "MANIFEST.json", 0); });
  const auto older = find_checkpoint(run.path(), group);
  on_rank_0([&] { std::filesystem::remove_all(run.checkpoint(5)); });
  const auto error = io_error([&] { find_checkpoint(run.path(), group); });

  EXPECT_FALSE(none);
  EXPECT_EQ(found->path(), run.checkpoint(20));
  EXPECT_EQ(older->path(), run.checkpoint(5));
  EXPECT_CONTAINS(error, "none of the 2 checkpoints");  // never silently from step 0
}

TEST(FindCheckpoint, TakesNoOlderOneWhileTheNewestCannotBeLookedAt) {
  RunFolder run;
  const auto& group = test_world().group();
  Training training(group, 1);
  CheckpointWriter writer(run.path(), group, {}, {});
  for (int step : {5, 20}) save(writer, training, step);
  group.barrier();
  using test::Fault;
  test::inject(
      {.parts = (run.checkpoint(20) / "shard-").string(), .code = ESTALE, .at = Fault::At::stat, .seconds = 1000});
  EXPECT_THROW(find_checkpoint(run.path(), group), UnreadableCheckpoint);
  test::clear_fault();
  EXPECT_EQ(find_checkpoint(run.path(), group)->path(), run.checkpoint(20));
}

TEST(CheckpointWriter, ReplacesADamagedOneOfTheSameStep) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  save(writer, training, 5);
  on_rank_0([&] { damage(run.checkpoint(5) / "MANIFEST.json", 0); });
  const bool published = save(writer, training, 5);
  EXPECT_TRUE(published);
  EXPECT_EQ(find_checkpoint(run.path(), test_world().group())->path(), run.checkpoint(5));
}

TEST(CheckpointWriter, RemovesWhatAKilledRunHasLeft) {
  RunFolder run;
  Training training(test_world().group(), 1);
  {
    CheckpointWriter writer(run.path(), test_world().group(), {}, {});
    save(writer, training, 1);
  }
  const auto half = run.path() / "checkpoints/step-00000009.tmp-0123456789abcdef-17-0123abcd-2",
             deleted = run.path() / "checkpoints/step-00000000.trash";
  on_rank_0([&] {
    for (const auto& path : {half, deleted}) std::filesystem::create_directories(path / "inner");
  });
  const CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  on_rank_0([&] {
    EXPECT_FALSE(std::filesystem::exists(half));
    EXPECT_FALSE(std::filesystem::exists(deleted));
    EXPECT_TRUE(std::filesystem::exists(run.checkpoint(1)));
  });
}

TEST(CheckpointWriter, KeepsTheNewestAndEveryNth) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {.keep = 2, .keep_every = Duration::steps(20)});
  for (int step : {10, 20, 30, 40, 50}) save(writer, training, step);
  test_world().group().barrier();  // rank 0 has deleted what is old
  std::vector<std::int64_t> steps;
  for (const auto& checkpoint : list_checkpoints(run.path())) steps.push_back(checkpoint.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{50, 40, 20}));
  for (const auto& entry : std::filesystem::directory_iterator(run.path() / "checkpoints"))
    EXPECT_TRUE(entry.path().filename().string().starts_with("step-") && entry.path().extension().empty()) << entry;
}

// 4000 bytes of one trainer's; the other piece, a mate's part, is empty and counts as one byte.
TEST(Snapshot, PinnedMemoryCountsAsLibTorchRoundsIt) {
  const auto layout = plan_flat_layout({ParameterSpec{"weight", {1000}}}, /*bucket_elements=*/1000, /*shards=*/1);
  const Snapshot snapshot(FilePlan(layout, ShardPlan{}, /*max_files=*/1), {"weights"}, Group());
  EXPECT_EQ(snapshot.bytes(/*pinned=*/false), 4000u);
  EXPECT_EQ(snapshot.bytes(/*pinned=*/true), 4096u + 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which end the process there
// By a limit of the process, say, of which the node's free memory tells nothing.
TEST(Snapshot, MemoryThatIsRefusedIsNoFaultOfTheNode) {
  constexpr std::int64_t beyond_all_addresses = std::int64_t{1} << 48;
  const auto layout = plan_flat_layout({ParameterSpec{"weight", {beyond_all_addresses}}}, beyond_all_addresses, 1);
  Snapshot snapshot(FilePlan(layout, ShardPlan{}, /*max_files=*/1), {"weights"}, Group());
  phase::current = phase::saving;
  const auto error = test::error_of([&] { snapshot.allocate(/*pinned=*/false); });
  phase::current = phase::starting;
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), testing::HasSubstr("bytes"));
}
#endif

// Whether the copies of all ranks find it on nodes with so many free bytes.
bool has_room(const std::vector<std::string>& hosts, std::uint64_t free) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {.hosts = hosts, .free_memory = free});
  const test::OwnLog log;
  EXPECT_TRUE(save(writer, training, 1));
  return !test_world().group().any(log.count("no room for a copy of the state") > 0);
}

// 174 float32 with moments and EMA are 2784 bytes, of which rank 0 has four fifths at most where there are others. A
// tenth of what is free stays so.
TEST(CheckpointWriter, CopiesTheStateWhereANodeHasRoomForAllOfItsRanks) {
  const auto ranks = static_cast<std::size_t>(test_world().size());
  const std::vector<std::string> one_node(ranks, "n");
  std::vector<std::string> nodes;
  for (std::size_t rank = 0; rank < ranks; ++rank) nodes.push_back(fmt::format("n{}", rank));
  for (const auto& hosts : {one_node, std::vector<std::string>()}) {
    EXPECT_FALSE(has_room(hosts, 3000));
    EXPECT_TRUE(has_room(hosts, 3100));
  }
  EXPECT_EQ(has_room(nodes, 2600), ranks > 1);
}

// The ranks that find damage where they alone see something else in place of the file that rank 0 has written.
std::vector<int> readers_of_rank_0(const std::vector<std::string>& hosts) {
  const auto& group = test_world().group();
  std::vector<int> readers;
  for (int rank = 1; rank < group.size(); ++rank) {
    RunFolder run;
    std::optional<StaleSight> sight;
    if (group.rank() == rank) sight.emplace(run, 1).spoil();
    Training training(group, 1);
    CheckpointWriter writer(sight ? sight->path() : run.path(), group, {}, {.hosts = hosts});
    writer.start(training.model, training.optimizer, state_at(1), {});
    EXPECT_TRUE(writer.commit());
    if (writer.settle() == CheckpointWriter::Found::damaged) readers.push_back(rank);
  }
  return readers;
}

TEST(CheckpointWriter, ReadsAFileBackOnAnotherRankOfAnotherNodeWhereThereIsOne) {
  const int ranks = test_world().size();
  if (ranks == 1) GTEST_SKIP() << "needs another rank";
  const std::vector<std::string> one_node(static_cast<std::size_t>(ranks), "n");
  std::vector<std::string> two_nodes;
  for (int rank = 0; rank < ranks; ++rank) two_nodes.emplace_back(rank < ranks / 2 ? "a" : "b");
  EXPECT_EQ(readers_of_rank_0({}), std::vector{1});
  EXPECT_EQ(readers_of_rank_0(one_node), std::vector{1});
  EXPECT_EQ(readers_of_rank_0(two_nodes), std::vector{ranks / 2});
}

// What the disk made of any of its files is looked at before the older ones go.
TEST(CheckpointWriter, WhatCannotBeReadBackAsWrittenIsPutAsideAndCostsNoOlderOne) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {.keep = 1, .keep_every = Duration::steps(20)});
  on_rank_0([&] { std::filesystem::create_directories(run.checkpoint(5).string() + ".damaged"); });
  save(writer, training, 10);
  writer.start(training.model, training.optimizer, state_at(20), {});
  while (writer.busy()) std::this_thread::yield();
  test_world().group().barrier();
  on_rank_0([&] { damage(run.checkpoint(20).string() + ".tmp-2/" + first_shard(training), -1); });
  const bool published = writer.commit();
  const auto found = writer.settle();
  test_world().group().barrier();
  EXPECT_TRUE(published);
  EXPECT_EQ(found, CheckpointWriter::Found::damaged);
  EXPECT_EQ(writer.last_step(), 10);
  EXPECT_EQ(writer.last_point().step, 10);
  EXPECT_EQ(run.checkpoints(), (Steps{10}));
  EXPECT_TRUE(std::filesystem::exists(run.checkpoint(20).string() + ".damaged"));
  EXPECT_FALSE(std::filesystem::exists(run.checkpoint(5).string() + ".damaged")) << "only the last one stays";
  test_world().group().barrier();
  save(writer, training, 30);
  test_world().group().barrier();
  EXPECT_EQ(run.checkpoints(), (Steps{30}));
  EXPECT_TRUE(std::filesystem::exists(run.checkpoint(30) / "KEEP")) << "for the one of step 20";
}

// Of such a disk nothing is asked that could end one rank alone.
TEST(CheckpointWriter, WhatIsDamagedIsPutAsideWhereItsFolderCannotBeListed) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  writer.start(training.model, training.optimizer, state_at(20), {});
  while (writer.busy()) std::this_thread::yield();
  test_world().group().barrier();
  on_rank_0([&] { damage(run.checkpoint(20).string() + ".tmp-1/" + first_shard(training), -1); });
  EXPECT_TRUE(writer.commit());
  while (writer.busy()) std::this_thread::yield();
  // ., .. and the checkpoint: then comes the end.
  test::inject({.parts = "checkpoints", .code = ESTALE, .at = test::Fault::At::list, .after = 3, .seconds = 1000});
  EXPECT_EQ(writer.settle(), CheckpointWriter::Found::damaged);
  on_rank_0([] { EXPECT_EQ(test::fault_failures(), 1); });
  test::clear_fault();
  test_world().group().barrier();
  EXPECT_TRUE(std::filesystem::exists(run.checkpoint(20).string() + ".damaged"));
}

// For tests/golden/checkpoints when the format changes: mpirun -n 3 checkpoint_test --gtest_also_run_disabled_tests
// --gtest_filter='Golden.*', with GOLDEN_OUT = a folder that holds an empty one called checkpoints.
TEST(Golden, DISABLED_IsWritten) {
  const char* const out = std::getenv("GOLDEN_OUT");
  ASSERT_TRUE(out);
  Training training(test_world().group(), 1);
  for (int i = 1; i <= 7; ++i) training.step(i);
  auto state = state_at(7);
  state.seconds = 12.5;
  state.skipped = 2;
  state.cursors[4] = {.epoch = 0, .split = 5, .row = 600, .given = 7};
  if (test_world().rank() == 0) state.ledger = R"({"archives": [["a", 3]], "seen": {"a": [[0, 3]]}})";
  CheckpointWriter writer(out, test_world().group(), {}, {});
  writer.start(training.model, training.optimizer, state, {{"kind", "unet"}, {"config", "run:\n  seed: 420\n"}});
  EXPECT_TRUE(writer.commit());
}

TEST(CheckpointWriter, AFailedSaveIsAWarningAndTheNextOneWorks) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  const auto folder = run.path() / "checkpoints";
  on_rank_0([&] { std::ofstream(folder) << "in the way"; });
  const bool into_a_file = save(writer, training, 1);
  on_rank_0([&] { std::filesystem::remove(folder); });
  // The folder vanishes between start and commit: nothing can be published.
  writer.start(training.model, training.optimizer, state_at(2), {});
  while (writer.busy()) std::this_thread::yield();
  on_rank_0([&] { std::filesystem::remove_all(folder); });
  const bool into_nothing = writer.commit();
  const bool at_last = save(writer, training, 3);

  EXPECT_FALSE(into_a_file);
  EXPECT_FALSE(into_nothing);
  EXPECT_TRUE(at_last);
  EXPECT_EQ(writer.last_step(), 3);
  EXPECT_EQ(list_checkpoints(run.path()).size(), 1u);
}

// What could not be deleted is tried again with each save; what is damaged goes once a save has failed.
TEST(CheckpointWriter, ASaveMakesRoomForItself) {
  RunFolder run;
  Training training(test_world().group(), 1);
  CheckpointWriter writer(run.path(), test_world().group(), {}, {});
  const auto trash = run.checkpoint(1).string() + ".trash", damaged = run.checkpoint(2).string() + ".damaged";
  on_rank_0([&] {
    std::filesystem::create_directories(trash);
    std::filesystem::create_directories(damaged);
  });
  const auto is_there = [](const std::string& path) {
    test_world().group().barrier();
    const bool there = std::filesystem::exists(path);
    test_world().group().barrier();
    return there;
  };
  EXPECT_TRUE(save(writer, training, 3));
  EXPECT_FALSE(is_there(trash));
  EXPECT_TRUE(is_there(damaged)) << "somebody may want to look at it";
  {
    std::optional<test::FileSizeLimit> limit;
    if (test_world().rank() == 0) limit.emplace(100);
    EXPECT_FALSE(save(writer, training, 4));
  }
  EXPECT_TRUE(save(writer, training, 5));
  EXPECT_FALSE(is_there(damaged));
}

// Of several ranks the second, whose file may not even hold its header.
TEST(CheckpointWriter, TheWarningNamesTheRankThatCouldNotWrite) {
  const auto& group = test_world().group();
  const int failing = group.size() > 1 ? 1 : 0;
  for (const bool knows_hosts : {true, false}) {
    RunFolder run;
    Training training(group, 1);
    CheckpointWriter::Options options;
    for (int rank = 0; knows_hosts && rank < group.size(); ++rank) options.hosts.push_back(fmt::format("n{}", rank));
    CheckpointWriter writer(run.path(), group, {}, options);
    const test::OwnLog log;
    {
      std::optional<test::FileSizeLimit> limit;
      if (group.rank() == failing) limit.emplace(100);
      writer.start(training.model, training.optimizer, state_at(1), {});
      while (writer.busy()) std::this_thread::yield();
    }
    EXPECT_FALSE(writer.commit());
    if (group.rank() != 0) continue;
    const auto named = knows_hosts ? fmt::format("rank {0} (n{0}): ", failing) : fmt::format("rank {}: ", failing);
    EXPECT_CONTAINS(log.text(), "no checkpoint at step 1: " + named + "cannot write ");
    EXPECT_CONTAINS(log.text(), "earlier checkpoints stay");
  }
}

}  // namespace
}  // namespace millrace
