// What a run tells about itself while it trains: metrics.jsonl, TensorBoard, Prometheus. The files are read by nothing
// of the program's own; scripts/check_tracking.py does the same with TensorBoard's and Prometheus' packages.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

using Points = std::map<std::string, std::vector<std::pair<std::int64_t, float>>>;  // by tag

// One producer and two trainers, 9 steps of which the first lost what it had after its checkpoint, and two more were
// begun without one: so steps 1 to 3 and 7 to 9 are taken twice.
const std::string& tracked() {
  static const std::string run = [] {
    const auto train_to = [](int step) {
      expect_success(
          mpirun(3) +
          train("tracked", "roles.producers=1 batch.global=4 data.stripes=4 'duration=" + std::to_string(step) +
                               " steps' 'checkpoint.every=6 steps' 'log.every=2 steps' "
                               "'validation.every=3 steps' validation.batches=1 objective.snr_gamma=5 "
                               "data.validation.path=" +
                               (workshop() / "shapes/00003.tar").string() +
                               " log.prometheus=" + (workshop() / "tracked.prom").string()));
    };
    train_to(3);
    fs::remove_all(workshop() / "tracked/checkpoints");
    for (const char* name : {"STATE", "DONE"}) fs::remove(workshop() / "tracked" / name);  // it knows of none
    train_to(9);
    fs::remove_all(checkpoint("tracked", 9));
    fs::remove(workshop() / "tracked/DONE");
    train_to(10);
    return std::string("tracked");
  }();
  return run;
}

// ---- docs/metrics.md ---------------------------------------------------------------------------------------------

TEST(Tracking, EveryFieldIsDocumentedAndEveryDocumentedFieldIsThere) {
  std::istringstream page(read(fs::path(MILLRACE_CONFIGS).parent_path() / "docs/metrics.md"));
  const std::regex row(R"(\| `([a-z_]+)` \|.*)"), elsewhere("gpu_|of `train-autoencoder`");
  std::set<std::string> documented, written;
  std::smatch match;
  for (std::string line; std::getline(page, line);)
    if (std::regex_match(line, match, row) && !std::regex_search(line, elsewhere)) documented.insert(match[1]);
  std::vector<int> steps;
  for (const auto& line : lines(workshop() / tracked() / "metrics.jsonl")) {
    steps.push_back(line["step"]);
    for (const auto& [name, value] : line.items())
      if (name.find("gpu_") == name.npos) written.insert(name);
  }
  EXPECT_EQ(written, documented);
  EXPECT_EQ(steps, (std::vector<int>{2, 3, 4, 6, 8, 9, 10}));
}

// ---- TensorBoard -------------------------------------------------------------------------------------------------

// CRC-32C, bit by bit, masked as TFRecord files have it.
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.substr(at, sizeof value).data(), sizeof value);
  return value;
}

std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> payloads;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = number_at<std::uint64_t>(file, at);
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 8), masked_crc(std::string_view(file).substr(at, 8)));
    payloads.push_back(file.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 12 + length), masked_crc(payloads.back()));
    at += length + 16;
  }
  return payloads;
}

// The fields of a protocol buffer's message: numbers as they are, floats as their bits, texts and messages as bytes.
struct Field {
  std::uint64_t number = 0;
  std::string_view bytes;
};
std::multimap<int, Field> fields(std::string_view message) {
  std::multimap<int, Field> found;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < message.size()) {
    const auto key = varint();
    Field field;
    switch (key & 7) {
      case 0:
        field.number = varint();
        break;
      case 1:
        field.number = number_at<std::uint64_t>(message, at), at += 8;
        break;
      case 5:
        field.number = number_at<std::uint32_t>(message, at), at += 4;
        break;
      default:
        const auto length = varint();
        field.bytes = message.substr(at, length), at += length;
    }
    found.emplace(static_cast<int>(key >> 3), field);
  }
  return found;
}

const Field& one(const std::multimap<int, Field>& all, int number) {
  EXPECT_EQ(all.count(number), 1u) << "field " << number;
  return all.find(number)->second;
}

// As TensorBoard shows a folder: files in the order of their names; where one says START, what was read from that step
// on is gone.
Points read_tensorboard(const fs::path& folder) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.insert(entry.path());
  Points points;
  for (const auto& file : files) {
    EXPECT_THAT(file.filename().string(), testing::StartsWith("events.out.tfevents."));
    for (const auto& payload : records(read(file))) {
      const auto event = fields(payload);
      const auto step = event.contains(2) ? static_cast<std::int64_t>(one(event, 2).number) : 0;
      if (event.contains(7) && one(fields(one(event, 7).bytes), 1).number == 1)
        for (auto& [tag, values] : points)
          std::erase_if(values, [&](const auto& point) { return point.first >= step; });
      if (!event.contains(5)) continue;
      const auto value = fields(one(fields(one(event, 5).bytes), 1).bytes);
      if (!value.contains(2)) continue;  // a text
      const auto bits = static_cast<std::uint32_t>(one(value, 2).number);
      float number;
      std::memcpy(&number, &bits, sizeof number);
      points[std::string(one(value, 1).bytes)].emplace_back(step, number);
    }
  }
  return points;
}

// The numbers of metrics.jsonl by the end of their tag: "/loss", "/encode/producer_stages".
Points numbers_of_lines(const std::vector<nlohmann::json>& all) {
  Points points;
  for (const auto& line : all)
    for (const auto& [name, value] : line.items()) {
      if (value.is_number()) points["/" + name].emplace_back(line["step"], value);
      if (!value.is_object()) continue;
      for (const auto& [key, number] : value.items())
        if (number.is_number()) points["/" + key + "/" + name].emplace_back(line["step"], number);
    }
  return points;
}

TEST(Tracking, TensorBoardShowsEachNumberOnceAfterRestarts) {
  const auto run = workshop() / tracked();
  const auto shown = read_tensorboard(run / "tensorboard");
  const auto wanted = numbers_of_lines(lines(run / "metrics.jsonl"));
  EXPECT_EQ(shown.size(), wanted.size());
  for (const auto& [ending, points] : wanted) {
    const auto tag = std::ranges::find_if(shown, [&](const auto& one) { return one.first.ends_with(ending); });
    ASSERT_NE(tag, shown.end()) << ending;
    EXPECT_EQ(tag->second, points) << tag->first;
  }
}

// ---- Prometheus --------------------------------------------------------------------------------------------------

TEST(Tracking, PrometheusGetsTheLastLine) {
  const auto all = lines(workshop() / tracked() / "metrics.jsonl");
  std::map<std::string, double> found;
  std::istringstream text(read(workshop() / "tracked.prom"));
  const std::regex sample(R"re(millrace_([a-z_]+)\{run="tracked"(?:,of="([^"]+)")?\} (\S+))re");
  std::smatch match;
  for (std::string line; std::getline(text, line);)
    if (!line.starts_with("#")) {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      found[match[2].length() ? "/" + match[2].str() + "/" + match[1].str() : "/" + match[1].str()] =
          std::stod(match[3]);
    }
  EXPECT_EQ(found["/running"], 0);
  for (const auto& [field, points] : numbers_of_lines({all.back()})) {
    const auto ending = field == "/samples" || field == "/skipped" ? field + "_total" : field;
    ASSERT_TRUE(found.contains(ending)) << ending;
    EXPECT_FLOAT_EQ(static_cast<float>(found[ending]), points[0].second) << ending;
  }
}

TEST(Tracking, AFileForPrometheusThatCannotBeWrittenEndsNoRun) {
  const auto outcome = shell(train("unwatched", "'duration=2 steps' 'checkpoint.every=null' log.prometheus=" +
                                                    (workshop() / "missing/run.prom").string()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "training goes on without it");
  EXPECT_EQ(outcome.output.find("log.prometheus:"), outcome.output.rfind("log.prometheus:")) << "told once";
  const auto refused = shell(train("unwatched", "'duration=3 steps' log.prometheus=run.txt"));
  EXPECT_EQ(refused.exit_code, 2);
  expect_mentions(refused, "must end in .prom");
}

}  // namespace
}  // namespace millrace::e2e
