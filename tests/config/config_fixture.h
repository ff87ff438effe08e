#pragma once
#include <gmock/gmock.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/temp_dir.h"
#include "millrace/config/config.h"
#include "millrace/core/error.h"

namespace millrace::test {

enum class Policy { resize_then_crop, crop_then_resize };

struct Source {
  std::string type = "webdataset";
  std::vector<std::string> path;
  std::map<std::string, std::string> filters;
  std::optional<std::int64_t> limit;

  void describe(config::Section& s) {
    s.key("type", type, "kind of data").one_of({"webdataset", "parquet", "synthetic"});
    s.key("path", path, "archives").required();
    s.key("filters", filters, "conditions on the metadata");
    s.key("limit", limit, "samples at most").at_least(1);
  }
};

struct Data {
  Source train;
  std::optional<Source> validation;
  int shuffle_buffer = 2000;
  config::Auto<int> stripes;
  bool allow_pipes = false;

  void describe(config::Section& s) {
    s.section("train", train, "what is trained on");
    s.section("validation", validation, "what is never trained on");
    s.key("shuffle_buffer", shuffle_buffer, "samples").at_least(0);
    s.key("stripes", stripes, "units of order").at_least(1);
    s.key("allow_pipes", allow_pipes, "pipe: URLs run commands");
    s.renamed("lanes", "stripes", "units of order");
  }
};

struct Optim {
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  std::optional<double> clip = 1.0;
  Duration warmup = Duration::steps(10000);

  void describe(config::Section& s) {
    s.key("lr", lr, "learning rate after the warm-up").at_least(0);
    s.key("betas", betas, "decay of the moments").at_least(0).below(1);
    s.key("clip", clip, "largest gradient norm; null = off").above(0);
    s.key("warmup", warmup, "linear warm-up");
  }
};

struct Run {
  config::Required dir;
  std::uint64_t seed = 420;
  std::optional<std::string> note;
  config::Bytes room{32 << 20};
  Policy policy = Policy::resize_then_crop;
  config::Auto<Policy> validation_policy;
  std::vector<std::int64_t> steps;

  void describe(config::Section& s) {
    const auto names = {std::pair<std::string_view, Policy>{"resize_then_crop", Policy::resize_then_crop},
                        {"crop_then_resize", Policy::crop_then_resize}};
    s.key("dir", dir, "folder of the run");
    s.key("seed", seed, "of all random numbers");
    s.key("note", note, "free text");
    s.key("room", room, "memory for parcels");
    s.key("policy", policy, names, "order of the two");
    s.key("validation_policy", validation_policy, names, "the same for validation");
    s.key("steps", steps, "to record").at_least(1);
  }
};

struct Root {
  Run run;
  Data data;
  Optim optim;
  Duration duration = Duration::steps(550000);

  void describe(config::Section& s) {
    s.section("run", run, "this run");
    s.section("data", data, "");
    s.section("optim", optim, "AdamW");
    s.key("duration", duration, "length of the run");
    s.ignore({"generate"});
  }
};

// Loads YAML texts (as a.yaml, b.yaml, ...) and overrides; what must be set is set.
class ConfigTest : public testing::Test {
 protected:
  config::Report load(const std::vector<std::string>& files, std::vector<std::string> overrides = {}) {
    config::Inputs inputs;
    for (const std::string& text : files) {
      inputs.files.push_back(dir_.write(std::string(1, static_cast<char>('a' + inputs.files.size())) + ".yaml", text));
    }
    inputs.overrides = {"run.dir=/run", "data.train.path=a.tar"};
    inputs.overrides.insert(inputs.overrides.end(), overrides.begin(), overrides.end());
    root_ = {};
    return config::load(root_, inputs);
  }

  // The same, and nothing may be wrong.
  Root& good(const std::vector<std::string>& files, std::vector<std::string> overrides = {}) {
    const config::Report report = load(files, std::move(overrides));
    EXPECT_THAT(report.problems(), testing::IsEmpty());
    return root_;
  }

  TempDir dir_;
  Root root_;
};

}  // namespace millrace::test
