// Pages of runs in every state, made by the built program.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <regex>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

// For names of which a shell would read the half.
std::string quoted(const std::string& text) {
  return "'" + std::regex_replace(text, std::regex("'"), R"('\'')") + "'";
}

struct Pages {
  std::string html, markdown;
};

// Nothing that a browser would run or fetch, nor what looks like it: of tags, what their attributes say.
void expect_harmless(const std::string& html) {
  for (const char* forbidden :
       {"<script", "<iframe", "<link", "<object", "<embed", "<base", "http-equiv", "@import", "url(", "<!--"})
    EXPECT_THAT(html, Not(HasSubstr(forbidden)));
  const std::regex handler(R"(\son\w+\s*=)", std::regex::icase);
  const std::regex source(R"re(\s(src|srcset|href|xlink:href|action|data|poster|background)\s*=\s*"(?!data:image/))re");
  std::set<std::string> seen;  // most tags are there many times, and std::regex is slow
  for (auto begin = html.find('<'); begin != html.npos; begin = html.find('<', begin + 1)) {
    // Paths and pictures are too long for std::regex, and hold no attributes.
    const auto tag = html.substr(begin, std::min<std::size_t>(html.find('>', begin) - begin, 400));
    if (!seen.insert(tag).second) continue;
    EXPECT_FALSE(std::regex_search(tag, handler)) << tag;
    EXPECT_FALSE(std::regex_search(tag, source)) << tag;
  }
}

Pages report_of(const std::string& run) {
  const auto dir = workshop() / run;
  const auto outcome = shell(millrace + " report " + quoted(dir.string()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  Pages pages{read(dir / "report.html"), read(dir / "report.md")};
  expect_harmless(pages.html);
  EXPECT_THAT(pages.markdown, Not(HasSubstr("<script")));
  EXPECT_THAT(pages.markdown, Not(HasSubstr("<img")));
  return pages;
}

// How many rows of each reason were left out, in text.
void expect_reasons(const std::string& run, const Pages& pages) {
  const auto ledger = nlohmann::json::parse(read(workshop() / run / "ledger.json"));
  for (const auto& [reason, count] : ledger["rejected"].items()) {
    EXPECT_THAT(pages.markdown, HasSubstr(fmt::format("| `{}` | {} (", reason, count.dump())));
    EXPECT_THAT(pages.html, HasSubstr(fmt::format("<code>{}</code></td><td>{} (", reason, count.dump())));
  }
}

// The workshop's first archive, with names, captions and file name full of markup and two files that are no images.
const fs::path& hostile_data() {
  static const fs::path folder = [] {
    const auto path = workshop() / "hostile", files = path / "files";
    fs::create_directories(files);
    expect_success("tar -C " + files.string() + " -xf " + (workshop() / "shapes/00000.tar").string());
    const std::string markup = "<script>alert(1)<!-- & \" ' <img src=x onerror=alert(2)> |`*";
    std::vector<fs::path> originals;
    for (const auto& entry : fs::directory_iterator(files)) originals.push_back(entry.path());
    for (const auto& file : originals)
      fs::rename(file, files / (markup + file.stem().string() + file.extension().string()));
    for (const char* key : {"x", "y"}) {
      std::ofstream(files / (markup + key + ".jpg")) << "no image";
      std::ofstream(files / (markup + key + ".txt")) << markup << "</td></table><iframe src=\"http://example.com\">";
    }
    expect_success("tar -C " + files.string() + " --sort=name -cf " + quoted((path / (markup + ".tar")).string()) +
                   " . && rm -r " + files.string());
    return path;
  }();
  return folder;
}

TEST(Report, OfAFinishedRun) {
  std::ofstream(workshop() / "prompts.jsonl")
      << R"({"prompt": "<script>alert(1)</script> & \"'<!-- <img src=x onerror=alert(2)>"})"
      << "\n";
  std::ofstream(workshop() / "plain.yaml") << "optim: {lr: 1e-3, weight_decay: 0.02}\nbatch: {micro: 4}\n";
  expect_success(
      train("finished", "--config " + (workshop() / "plain.yaml").string() +
                            " 'duration=4 steps' samples.prompts=" + (workshop() / "prompts.jsonl").string() +
                            " samples.count=1 samples.steps=2 'samples.every=2 steps'"
                            " data.validation.path=" +
                            (workshop() / "shapes").string() + " validation.batches=2 'validation.every=2 steps'"));
  expect_success(millrace + " evaluate run.device=cpu --run " + (workshop() / "finished").string() +
                 " 'evaluate.metrics=[]'");
  const auto pages = report_of("finished");
  for (const auto& page : {pages.html, pages.markdown}) {
    EXPECT_TRUE(std::regex_search(page, std::regex("[0-9.]+k? img/s")));
    for (const char* text : {"4 of 4 steps", "millrace export --run", "finished, step 4", "Evaluation", "plain.yaml",
                             "This run trains on CPUs.", "This run is not compared: it trains at 32 pixels", "MosaicML",
                             "1 x ", "(trainer and producer)", "started in"})
      EXPECT_THAT(page, HasSubstr(text));
    EXPECT_THAT(page, Not(HasSubstr("decay")));  // as the template has it
  }
  EXPECT_THAT(pages.html, HasSubstr("src=\"data:image/jpeg;base64,"));
  EXPECT_THAT(pages.html, HasSubstr("Loss by timestep"));
  EXPECT_THAT(pages.markdown, HasSubstr("| `batch.micro` | 2 | 4 |"));  // the command line wins
  EXPECT_TRUE(std::regex_search(pages.markdown, std::regex("\\| 4 \\| ema \\| [0-9.]+ \\| A \\|")));
  const auto today = shell("date -u +%F").output.substr(0, 10);
  EXPECT_TRUE(std::regex_search(pages.markdown, std::regex("\\| " + today + " [0-9:]{8} \\| info.* started in")));
  expect_reasons("finished", pages);

  const auto environment = nlohmann::json::parse(read(workshop() / "finished/environment.json"));
  EXPECT_EQ(environment["ranks"].size(), 1u);
  for (const char* key : {"time", "millrace", "processor", "memory", "LibTorch", "MPI"})
    EXPECT_FALSE(environment[key].get<std::string>().empty()) << key;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Report, OfAKilledRunThatGoesOnElsewhere) {
  const std::string often = "'checkpoint.every=2 steps' ";
  const auto dir = workshop() / "killed";
  const auto outcome =
      shell(signal_once(train("killed", often + "'duration=4000 steps'"), "KILL", dir / "STATE", "step-00000002"));
  ASSERT_EQ(outcome.exit_code, 128 + 9) << outcome.output;
  const auto killed = report_of("killed");
  for (const auto& page : {killed.html, killed.markdown}) {
    EXPECT_THAT(page, HasSubstr("running"));
    EXPECT_THAT(page, HasSubstr("If it was killed, the same command again"));
    EXPECT_THAT(page, HasSubstr("(trainer and producer)"));
  }
  EXPECT_EQ(count_of(killed.markdown, " started in "), 1);
  const auto last = lines(dir / "metrics.jsonl").back()["step"].get<int>();
  expect_success(mpirun(3) + train("killed", often + fmt::format("roles.producers=1 'duration={} steps'", last + 1)));
  const auto resumed = report_of("killed").markdown;
  EXPECT_EQ(count_of(resumed, " started in "), 2);
  EXPECT_THAT(resumed, HasSubstr("2 x "));
  EXPECT_THAT(resumed, HasSubstr("(producer)"));
}

// The first update throws the weights out of all proportion.
TEST(Report, OfStepsThatAreNotFinite) {
  expect_success(train("nan", "'duration=4 steps' guard.max_skips=9 optim.lr=1e30"));
  const auto pages = report_of("nan");
  for (const auto& page : {pages.html, pages.markdown}) {
    EXPECT_THAT(page, HasSubstr("not a number since step 2"));
    EXPECT_THAT(page, HasSubstr("is not finite"));
    EXPECT_THAT(page, HasSubstr("(3 times, the last at "));
  }
  EXPECT_TRUE(std::regex_search(pages.markdown, std::regex("updates left out \\| 3 \\|")));
}

// Its name, its settings, and, in warnings of steps that are not finite, the ids of its samples are all markup.
TEST(Report, OfARunThatIsFullOfMarkup) {
  const std::string name = "<script>&\"'<!-- onload=alert(1) |`*_";
  std::ofstream(workshop() / "<b>prompts.jsonl") << R"({"prompt": "</figcaption><script>alert(1)</script>"})"
                                                 << "\n";
  const auto outcome =
      shell(train("plainly", "'duration=3 steps' guard.max_skips=9 optim.lr=1e30 data.max_bad_share=1 " +
                                 quoted("run.dir=" + (workshop() / name).string()) + " " +
                                 quoted("data.train.path=" + hostile_data().string()) + " " +
                                 quoted("samples.prompts=" + (workshop() / "<b>prompts.jsonl").string()) +
                                 " samples.count=1 samples.steps=2 'samples.every=1 steps'"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto pages = report_of(name);
  for (const auto& page : {pages.html, pages.markdown}) {
    EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)"));  // ids of samples
    EXPECT_THAT(page, HasSubstr("&lt;b&gt;prompts.jsonl"));
  }
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / name / "ledger.json"))["rejected"]["not_an_image"], 2);
  expect_reasons(name, pages);
}

TEST(Report, OfTwoRunsSideBySide) {
  expect_success(train("left", "'duration=1 steps'"));
  expect_success(train("right", "'duration=2 steps' optim.lr=3e-4"));
  const auto both = (workshop() / "left").string() + " " + (workshop() / "right").string();
  const auto refused = shell(millrace + " report " + both);
  EXPECT_EQ(refused.exit_code, 2);
  expect_mentions(refused, "--out FILE.html has to say");
  expect_success(millrace + " report " + both + " --out " + (workshop() / "pages/both.html").string());
  const auto html = read(workshop() / "pages/both.html"), markdown = read(workshop() / "pages/both.md");
  expect_harmless(html);
  EXPECT_THAT(markdown, HasSubstr("|  | left | right |"));
  EXPECT_THAT(markdown, HasSubstr("| `optim.lr` | 0.001 | 0.0003 |"));
  EXPECT_THAT(markdown, HasSubstr("| step | 1 of 1 steps | 2 of 2 steps |"));
  EXPECT_THAT(markdown, Not(HasSubstr("batch.global")));  // the same in both
  EXPECT_FALSE(fs::exists(workshop() / "left/report.html"));
}

TEST(Report, OfNoRun) {
  fs::create_directories(workshop() / "empty");
  for (const char* name : {"nowhere", "empty"}) {
    const auto outcome = shell(millrace + " report " + (workshop() / name).string());
    EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
    expect_mentions(outcome, (workshop() / name).string() + " is no run");
    EXPECT_FALSE(fs::exists(workshop() / name / "report.html"));
  }
}

// Of processors: what a clock says depends on who else computes here.
double seconds_of_children() {
  rusage use{};
  ::getrusage(RUSAGE_CHILDREN, &use);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

void expect_quick_and_small(const std::string& run, int steps, double most_seconds) {
  const auto dir = workshop() / run;
  fs::create_directories(dir / "log");
  std::ofstream metrics(dir / "metrics.jsonl"), log(dir / "log/rank-00000.log");
  for (int step = 1; step <= steps; ++step) {
    metrics << fmt::format(
        "{{\"step\":{0},\"samples\":{1},\"loss\":{2:.6f},\"grad_norm\":{3:.4f},\"lr\":0.0001,\"images_per_second\":{4},"
        "\"step_ms\":1050.5,\"data_wait_ms\":{5},\"encode_images_per_second\":9000.5,\"queue_fill\":0.5,"
        "\"straggler\":1.02,\"slowest_rank\":{6},\"producer_stages\":{{\"read\":0.1,\"decode\":0.2,\"transform\":0.05,"
        "\"tokenise\":0.01,\"encode\":0.9,\"encode_wait\":0.02,\"send\":0.01,\"send_wait\":0.05}},\"skipped\":0,"
        "\"memory_gib\":61.5,\"gpu_utilization\":0.98,\"gpu_memory_gib\":70.5,\"gpu_watts\":{7},"
        "\"time\":\"2026-11-23T20:15:00Z\"}}\n",
        step, 2048LL * step, 0.1 + 1.0 / step + 0.01 * (step % 97), 0.3 + 0.01 * (step % 31), 1900 + step % 211,
        step % 53, step % 32, 390 + step % 23);
    if (step % 10 == 0)
      log << fmt::format(
          "2026-11-23T20:15:00Z warning trainer/0 step {0} step {0}: loss nan is not finite; "
          "samples: a/{0}, b/{0}; the update is skipped\n",
          step);
    if (step % 10'000 == 0) log << "2026-11-23T20:15:00Z info trainer/0 started in 20 s\n";
  }
  metrics.close();
  log.close();
  const double before = seconds_of_children();
  const auto pages = report_of(run);
  const double seconds = seconds_of_children() - before;
  EXPECT_LT(seconds, most_seconds);
  EXPECT_LT(pages.html.size() + pages.markdown.size(), 6'000'000u);
  EXPECT_THAT(pages.markdown, HasSubstr(fmt::format("({} times, the last at 2026-11-23 20:15:00)", steps / 10)));
  testing::Test::RecordProperty("seconds", fmt::format("{:.1f}", seconds));
  testing::Test::RecordProperty("bytes", std::to_string(pages.html.size()));
}

// The contract: at most 30 s and 6 MB for the run of the paper.
TEST(ReportMinutes, OfTheLongestRunIsQuickAndSmall) {
  expect_quick_and_small("longest", 550'000, 30);
}

// A fifth of it: the time in proportion, and some seconds to start, which with sanitizers it takes.
TEST(Report, OfALongRunIsQuickAndSmall) {
  expect_quick_and_small("long", 110'000, 9);
}

}  // namespace
}  // namespace millrace::e2e
