// Files that mean harm: each is rejected by a typed reason or an Error that names it, without a crash, in bounded
// memory and time; and a stream that meets all of them goes on with the good ones. Each file is read in a process of
// its own, whose address space is limited.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cached_archive.h"
#include "dataset/temp_archives.h"
#include "hostile/files.h"
#include "millrace/core/error.h"
#include "millrace/io/json.h"
#include "millrace/io/safetensors.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/inspect_latent_cache.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/stripe_stream.h"

namespace millrace::hostile {
namespace {

using test::TempFolder;

constexpr rlim_t memory_cap = 1ull << 30;  // beyond what the program itself takes
constexpr rlim_t seconds_cap = 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool can_limit_memory = false;  // sanitizers take address space for their own
#else
constexpr bool can_limit_memory = true;
#endif

// Of this process, in bytes.
rlim_t address_space() {
  std::ifstream status("/proc/self/statm");
  rlim_t pages = 0;
  status >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

void limit_this_process() {
  const rlimit seconds{seconds_cap, seconds_cap};
  setrlimit(RLIMIT_CPU, &seconds);
  if (!can_limit_memory) return;
  const rlim_t bytes = address_space() + memory_cap;
  const rlimit memory{bytes, bytes};
  setrlimit(RLIMIT_AS, &memory);
}

// What `body` returns, or the words "error TEXT" of the Error it throws, from a process of its own; "died: ..." when
// that one does not live to tell.
std::string in_another_process(const std::function<std::string()>& body) {
  int ends[2];
  ensure(::pipe(ends) == 0, "a pipe can be had");
  const pid_t child = ::fork();
  ensure(child >= 0, "a process can be had");
  if (child == 0) {
    ::close(ends[0]);
    std::string text;
    try {
      limit_this_process();
      text = body();
    } catch (const Error& error) {
      text = std::string("error ") + error.what();
    } catch (const std::exception& error) {
      text = std::string("died: ") + error.what();
    }
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t written = ::write(ends[1], text.data() + done, text.size() - done);
      if (written <= 0) break;
      done += static_cast<std::size_t>(written);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return fmt::format("died: signal {}", WTERMSIG(status));
  return text;
}

SourceConfig source_of(const std::string& path) {
  SourceConfig source;
  source.path = {path};
  if (path.ends_with(".parquet")) source.type = SourceConfig::Type::parquet;
  if (path.ends_with(".csv") || path.ends_with(".jsonl")) source.type = SourceConfig::Type::csv;
  return source;
}

TransformPipeline preparation_of(const Filter& filter) {
  TransformPipeline transforms;
  transforms.transform.resolution = 32;
  transforms.filter = &filter;
  return transforms;
}

// "accepted", or why not.
std::string verdict(RawRow row, const TransformPipeline& transforms) {
  if (const auto* rejected = std::get_if<Rejected>(&row)) return to_string(rejected->reason);
  auto& sample = std::get<RawSample>(row);
  if (const auto refusal = judge_metadata(sample, transforms)) return to_string(refusal->first);
  TransformSeconds spent;
  const auto outcome = transform_sample(std::move(sample), transforms, spent);
  const auto* rejected = std::get_if<Rejected>(&outcome);
  return rejected ? to_string(rejected->reason) : "accepted";
}

std::string joined(const std::multiset<std::string>& verdicts) {
  std::string text;
  for (const auto& word : std::set<std::string>(verdicts.begin(), verdicts.end()))
    text += (text.empty() ? "" : " ") + word;
  return text.empty() ? "nothing" : text;
}

using Filters = std::map<std::string, std::string>;

// What comes of an archive's rows, read from its front; where it can be read in splits too, those must agree.
std::string read_archive(const std::string& path, const Filters& filters = {}) {
  SourceConfig config = source_of(path);
  config.filters = filters;
  const Manifest manifest = make_manifest(config, false);
  const auto source = make_source(config, manifest, 32);
  const Filter filter(filters);
  const TransformPipeline transforms = preparation_of(filter);
  const auto read = [&](std::uint32_t splits) {
    StripePlan plan{1, {}};
    for (std::uint32_t split = 0; split < splits; ++split) plan.splits.push_back({0, split, splits});
    const EpochOrder order(1, plan);
    StripeReader reader(order, *source, 0, {});
    std::multiset<std::string> verdicts;
    for (StripeRow row = reader.next(); row.row; row = reader.next())
      verdicts.insert(verdict(std::move(*row.row), transforms));
    return verdicts;
  };
  const auto whole = read(1);
  if (manifest.archives[0].seekable && read(3) != whole) return "splits differ from the whole";
  return joined(whole);
}

std::string read_image(const std::string& bytes) {
  RawSample sample;
  sample.image = bytes;
  const Filter none(Filters{});
  return verdict(std::move(sample), preparation_of(none));
}

std::string read_tensors(const std::string& path) {
  const SafetensorsFile file(path);
  for (const auto& tensor : file.tensors()) (void)file.bytes(tensor);
  return "accepted";
}

void expect(const File& file, const std::string& path, const std::function<std::string()>& read) {
  const std::string outcome = in_another_process(read);
  if (file.expected != "error") {
    EXPECT_EQ(outcome, file.expected) << file.name;
    return;
  }
  EXPECT_TRUE(outcome.starts_with("error ")) << file.name << ": " << outcome.substr(0, 300);
  EXPECT_THAT(outcome, testing::HasSubstr(path)) << file.name;
}

void expect_archives(const std::vector<File>& files, const Filters& filters = {}) {
  for (const File& file : files) {
    const TempFolder folder;
    folder.write(file.name, file.bytes);
    const std::string path = folder.path(file.name);
    expect(file, path, [&] { return read_archive(path, filters); });
  }
}

TEST(Hostile, Tars) {
  expect_archives(tars());
}

TEST(Hostile, Metadata) {
  expect_archives(tars_with_metadata(), {{"w", ">5"}});
}

TEST(Hostile, Tables) {
  expect_archives(tables());
}

TEST(Hostile, Images) {
  for (const File& file : images()) expect(file, {}, [&] { return read_image(file.bytes); });
}

TEST(Hostile, Safetensors) {
  const TempFolder folder;
  for (const File& file : safetensors()) {
    const std::string path = folder.path(file.name + ".safetensors");
    folder.write(file.name + ".safetensors", file.bytes);
    expect(file, path, [&] { return read_tensors(path); });
  }
}

TEST(Hostile, Json) {
  const TempFolder folder;
  for (const File& file : broken_json()) {
    const std::string path = folder.path(file.name + ".json");
    folder.write(file.name + ".json", file.bytes);
    expect(file, path, [&] {
      (void)read_json(path);
      return "accepted";
    });
  }
}

// Ten GiB that take no room on disk.
TEST(Hostile, FilesOfHoles) {
  const TempFolder folder;
  const auto holes = [&](const std::string& name) {
    folder.write(name, "");
    fs::resize_file(folder.path(name), 10ull << 30);
    return folder.path(name);
  };
  const auto expect_error = [](const std::string& path, const std::function<std::string()>& read) {
    expect({path, "", "error"}, path, read);
  };
  const std::string json = holes("x.json"), tensors = holes("x.safetensors"), tar = holes("x.tar");
  expect_error(json, [&] { return read_json(json).dump(); });
  expect_error(tensors, [&] { return read_tensors(tensors); });
  for (const auto& archive : {tar, holes("x.parquet")})
    EXPECT_EQ(in_another_process([&] { return read_archive(archive); }), "archive_error") << archive;
}

// A small latent cache of four rows, sound but for one file.
class HostileCache : public testing::Test {
 protected:
  HostileCache() {
    const CacheDescription description{{{"made_with", "a test"}}, shape, std::vector<std::uint16_t>(20, 7)};
    write_cache_description(cache, description);
    archive.name = archive.path = "a";
    LatentFileWriter writer(cache, archive, description);
    const std::vector<std::uint16_t> moments(18), text(20);
    for (std::uint64_t row = 0; row < 4; ++row)
      writer.add({row, fmt::format("a/{}", row), "caption", moments, text, true});
    writer.publish();
    write_cache_manifest(cache, {{{archive, 4, false}}});
  }

  // Everything that reads a cache, on the whole of it: an Error with all problems.
  std::string read() const {
    const auto report = inspect_latent_cache(cache);
    std::string problems;
    for (const auto& problem : report.at("problems")) problems += problem.get<std::string>() + "\n";
    try {
      const CachedArchive rows(cache, archive, read_cache_description(cache).shape);
      CachedArchive::Opened opened;
      for (std::uint64_t row = 0; row < 8; ++row)
        for (const auto& place : rows.find(row))
          if (!place.rejected()) (void)rows.load(place, opened);
      (void)make_latent_manifest(cache, {});
    } catch (const Error& error) {
      problems += error.what();
    }
    if (problems.empty()) return "accepted";
    throw Error(Exit::io, problems);
  }

  void expect_refused(const fs::path& place, std::vector<File> (*make)(const std::string&)) {
    EXPECT_EQ(in_another_process([&] { return read(); }), "accepted");
    const std::string sound = read_file(place);
    for (const File& file : make(sound)) {
      std::ofstream(place, std::ios::binary) << file.bytes;
      expect(file, place.parent_path().string(), [&] { return read(); });
    }
    std::ofstream(place, std::ios::binary) << sound;
  }

  fs::path file(const char* extension) const {
    for (const auto& entry : fs::directory_iterator(latent_folder(cache, archive.name)))
      if (entry.path().extension() == extension) return entry.path();
    return {};
  }

  const TempFolder folder;
  const fs::path cache = folder.path("cache");
  const EncodingShape shape{{2, 3, 3}, {4, 5}};
  Archive archive;
};

TEST_F(HostileCache, Records) {
  expect_refused(file(".json"), latent_records);
}

TEST_F(HostileCache, Values) {
  expect_refused(file(".h5"), latent_values);
}

TEST_F(HostileCache, Manifests) {
  expect_refused(cache / "MANIFEST.json", cache_manifests);
}

TEST_F(HostileCache, Descriptions) {
  expect_refused(cache / "CACHE.json", cache_descriptions);
}

// One pass over a folder of hostile tars, hostile images in tars, and good tars between them: the samples of the good
// ones all come out, and the ledger has a reason for everything else.
TEST(Hostile, AStreamGoesOn) {
  const TempFolder folder;
  std::vector<File> files = tars();
  for (const File& file : tars_with_metadata()) files.push_back(file);
  for (const File& file : files) folder.write(file.name, file.bytes);
  std::vector<TarSample> samples;
  for (const File& file : images())
    samples.push_back(test::sample(std::to_string(samples.size()), file.bytes, "a caption"));
  folder.write_tar("images.tar", samples);
  for (const char* name : {"0_good.tar", "m_good.tar", "z_good.tar"}) folder.write(name, good_tar("sample"));
  const std::string outcome = in_another_process([&] {
    DataConfig config;
    config.train.path = {folder.path("")};
    const DataPlan plan = make_data_plan(config.train, config, 4);
    const auto source = make_source(config.train, plan.manifest, 32, "never");
    const EpochOrder order(1, plan.stripes);
    RejectedList list(folder.path("rejected"), 0, plan.manifest);
    const Filter none(Filters{});
    TransformPipeline transforms = preparation_of(none);
    transforms.images.max_pixels = 64 << 20;  // two threads have two images at a time
    StripeStream stream(order, *source, transforms, {.threads = 2, .block = 1, .epochs = 1, .rejected = &list});
    Ledger ledger(plan);
    std::set<std::string> good;
    for (std::uint32_t s = 0; s < plan.stripes.stripes; ++s) {
      stream.add(s, {});
      while (const auto sample = stream.next(s))
        if (sample->ref.id.ends_with("_good/sample")) good.insert(sample->ref.id.substr(0, 1));
      for (auto delta = stream.take_ledger_delta(s); !delta.empty(); delta = stream.take_ledger_delta(s))
        ledger.merge(delta);
    }
    const auto count = [&](RejectReason reason) { return ledger.total().rejected[static_cast<int>(reason)]; };
    return fmt::format("{} {} {} {} {}", fmt::join(good, ""), count(RejectReason::archive_error) > 30,
                       count(RejectReason::not_an_image) > 20, count(RejectReason::truncated_image) > 20,
                       count(RejectReason::too_large) > 10);
  });
  EXPECT_EQ(outcome, "0mz true true true true");
}

}  // namespace
}  // namespace millrace::hostile
