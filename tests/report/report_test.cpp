#include "millrace/report/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <regex>
#include <tuple>

#include "core/temp_dir.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string hostile = "</td><script>alert(1)</script><img src=x onerror=alert(2)> \"'&\x01\xff|`";

// Elements close in the reverse order in which they open, attributes are quoted, and entities are known: what an XML
// parser wants, without one.
void expect_well_formed(const std::string& html) {
  std::vector<std::string> open;
  const std::regex tag(R"re(<(/?)([a-z0-9]+)((?:\s+[a-zA-Z-]+="[^"<]*")*)\s*(/?)>)re");
  std::string text = html.substr(html.find("<html"));
  const auto style = text.find("<style>"), style_end = text.find("</style>");
  text.erase(style + 7, style_end - style - 7);
  const std::regex data("base64,[A-Za-z0-9+/=]*");  // too long for std::regex to go through inside of a tag
  std::string shortened;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = text.find("base64,", at);
    shortened += text.substr(at, found == text.npos ? text.npos : found - at);
    at = found == text.npos ? text.size() : text.find('"', found);
  }
  for (std::size_t at = 0; at < shortened.size();) {
    const auto next = shortened.find('<', at);
    if (next == shortened.npos) break;
    const auto end = shortened.find('>', next);
    ASSERT_NE(end, shortened.npos);
    auto element = shortened.substr(next, end - next + 1);
    element = std::regex_replace(element, std::regex(" d=\"[^\"]*\""), "");  // likewise
    std::smatch match;
    ASSERT_TRUE(std::regex_match(element, match, tag)) << element;
    if (match[1].length()) {
      ASSERT_FALSE(open.empty()) << element;
      ASSERT_EQ(open.back(), match[2]);
      open.pop_back();
    } else if (!match[4].length()) {
      open.push_back(match[2]);
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

void expect_harmless(const std::string& html) {
  for (const char* forbidden : {"<script", "<iframe", "<link", "<object", "@import", "http:", "https:", "url("})
    EXPECT_THAT(html, Not(HasSubstr(forbidden)));
  EXPECT_FALSE(std::regex_search(html.substr(0, 20'000), std::regex("<[^>]* on[a-z]+=")));
}

RunRecord long_run(test::TempDir& folder, int steps) {
  std::string lines;
  for (int step = 1; step <= steps; ++step)
    lines += fmt::format(
        "{{\"step\":{0},\"samples\":{1},\"loss\":{2},\"grad_norm\":0.5,\"lr\":0.0001,\"images_per_second\":300,"
        "\"step_ms\":100,\"data_wait_ms\":20,\"producer_stages\":{{\"encode\":0.9,\"send_wait\":0.05}},\"skipped\":2,"
        "\"memory_gib\":1.5,\"time\":\"2026-11-23T20:00:00Z\"}}\n",
        step, 32 * step, step == 7 ? "null" : fmt::format("{:.4f}", 0.1 + 1.0 / step));
  folder.write("metrics.jsonl", lines);
  folder.write("config.yaml", fmt::format("run:\n  dir: {}\nduration: 100 steps\n", hostile));
  folder.write("ledger.json", "{\"rows\":1000,\"accepted\":990,\"rejected\":{\"decode_error\":7,\"too_small\":3}}");
  folder.write("STATE", "{\"state\":\"running\",\"step\":50}");
  return read_run(folder.path());
}

TEST(Report, SaysWhatARunDid) {
  test::TempDir folder;
  std::vector runs = {long_run(folder, 50)};
  runs[0].base = {"", {{"duration", "550000 steps"}, {"run.dir", "???"}}};
  const auto report = make_report(runs);
  const auto html = render_html(report), markdown = render_markdown(report);
  for (const auto& page : {html, markdown}) {
    for (const char* text : {"300 img/s", "20.0 %", "0.7 %", "too", "50 of 100 steps", "running"})
      EXPECT_THAT(page, HasSubstr(text));
    EXPECT_THAT(page, Not(HasSubstr("<script")));
    EXPECT_THAT(page, Not(HasSubstr("<img src=x")));
  }
  EXPECT_THAT(html, HasSubstr("decode_error"));
  EXPECT_THAT(markdown, HasSubstr("| `decode_error` | 7 (0.7 %) |"));
  EXPECT_THAT(markdown, HasSubstr("| `duration` | 100 steps | 550000 steps |"));
  EXPECT_THAT(html, HasSubstr("what is not the default"));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
  expect_well_formed(html);
  expect_harmless(html);
}

TEST(Report, SaysWhatToTypeNext) {
  const std::string plain = "the same command again", automatic = "the same command with checkpoint.resume=auto";
  const std::string own = "RUN/checkpoints/step-00000050", old = "OLD/checkpoints/step-00000010";
  for (const auto& [resume, typed, newest, expected] :
       {std::tuple{"auto", "", own, plain}, std::tuple{old.c_str(), "", old, plain},
        std::tuple{old.c_str(), "", own, automatic}, std::tuple{"never", "", std::string(), plain},
        std::tuple{"never", "", own, automatic}, std::tuple{"auto", "auto", own, plain},
        std::tuple{"auto", old.c_str(), own, automatic},  // restarted by supervise
        std::tuple{old.c_str(), old.c_str(), std::string("OLD/checkpoints/step-00000005"), plain}})  // gone back there
    for (const std::string state : {"running", "requeue"}) {
      test::TempDir folder;
      folder.write("config.yaml", fmt::format("checkpoint:\n  resume: {}\n", resume));
      std::filesystem::create_directories(folder / "checkpoints/step-00000050");
      if (*typed) folder.write("environment.json", nlohmann::json{{"typed_resume", typed}}.dump());
      folder.write("STATE", fmt::format(R"({{"state":"{}","step":50,"checkpoint":"{}"}})", state, newest));
      const std::vector runs = {read_run(folder.path())};
      const auto page = render_html(make_report(runs));
      EXPECT_THAT(page, HasSubstr(expected)) << resume << " " << typed << " " << newest << " " << state;
      EXPECT_THAT(page, Not(HasSubstr(expected == plain ? automatic : plain))) << resume << " " << newest;
    }
}

TEST(Report, OfARunThatHasDoneNothing) {
  test::TempDir folder;
  folder.write("config.yaml", "duration: 5 steps\n");
  const std::vector runs = {read_run(folder.path())};
  const auto html = render_html(make_report(runs));
  EXPECT_THAT(html, HasSubstr("No step has been logged yet."));
  expect_well_formed(html);
}

TEST(Report, OfSeveralRunsSaysWhatDiffers) {
  test::TempDir first, second;
  std::vector runs = {long_run(first, 50), long_run(second, 80)};
  runs[1].settings["optim.lr"] = "0.0003";
  runs[1].evaluations = {nlohmann::json::parse(R"({"step":50,"guidance_scale":7.5,"images":100,"fid":12.5})")};
  EXPECT_THAT(render_html(make_report(runs)), Not(HasSubstr("FID over CLIP score")));
  for (const auto* line : {R"({"step":80,"guidance_scale":3,"fid":13.5,"clip_score":21.25})",
                           R"({"step":80,"guidance_scale":9,"fid":17.5,"clip_score":24.5})"})
    runs[1].evaluations.push_back(nlohmann::json::parse(line));
  const auto html = render_html(make_report(runs));
  EXPECT_THAT(html, HasSubstr("optim.lr"));
  EXPECT_THAT(html, HasSubstr("12.5"));
  EXPECT_THAT(html, HasSubstr("FID over CLIP score"));
  EXPECT_THAT(html, HasSubstr(">22</text>"));  // on the axis of CLIP scores
  EXPECT_THAT(html, testing::AllOf(HasSubstr(">3</text>"), HasSubstr(">9</text>"))) << "the guidance of each point";
  expect_well_formed(html);
  expect_harmless(html);
}

TEST(Report, RejectedRowsOfARunWithoutALedgerAreNotKnown) {
  test::TempDir first, second;
  std::vector runs = {long_run(first, 5), long_run(second, 5)};
  runs[1].ledger = nullptr;
  const auto page = render_markdown(make_report(runs));
  EXPECT_THAT(page, testing::ContainsRegex("\\| `decode_error` \\| 7 \\(0.7 %\\) \\| *\\|"));
  EXPECT_THAT(page, Not(HasSubstr("0 (0.0 %)")));
}

std::string page_of(const RunRecord& run) {
  return render_html(make_report(std::span(&run, 1)));
}

RunRecord unet_run(test::TempDir& folder, const std::string& device, int pixels) {
  auto run = long_run(folder, 50);
  run.name = "ours";
  run.settings["objective.prediction"] = "epsilon";
  run.settings["transform.resolution"] = std::to_string(pixels);
  run.environment = nlohmann::json::parse(fmt::format(
      R"({{"millrace":"1.2","ranks":[{{"host":"n1","role":"trainer","device":"{0}","device_name":"H100","threads":4}},
          {{"host":"n1","role":"trainer","device":"{0}","device_name":"H100","threads":4}},
          {{"host":"n2","role":"producer","device":"{0}","device_name":"A10G","threads":4}}]}})",
      device));
  return run;
}

// 300 images a second of two trainers, where another one's A100 makes 137.5.
TEST(Report, OneTrainerStandsBesidePublishedRates) {
  test::TempDir folder;
  const auto page = page_of(unet_run(folder, "cuda", 256));
  EXPECT_THAT(page, HasSubstr("<div class=\"own\"><span>ours, H100<b>150</b></span><i style=\"width:83.6%\">"));
  EXPECT_THAT(page, HasSubstr("<div class=\"other\"><span>MosaicML, A100, from latents<b>137.5</b></span>"));
  EXPECT_THAT(page, Not(HasSubstr("49.7")));  // of 512 pixels
  EXPECT_THAT(page, Not(HasSubstr("not compared")));
  expect_well_formed(page);
}

// The name of one may be the beginning of another's.
TEST(Report, TrainersOfSeveralKindsAreNamed) {
  test::TempDir folder;
  auto run = unet_run(folder, "cuda", 256);
  run.environment["ranks"][0]["device_name"] = "A10G";
  run.environment["ranks"][1]["device_name"] = "A10";
  EXPECT_THAT(page_of(run), HasSubstr("<span>ours, A10, A10G<b>150</b></span>"));
}

TEST(Report, SaysWhyARunIsNotBesidePublishedRates) {
  test::TempDir folder;
  EXPECT_THAT(page_of(unet_run(folder, "cpu", 256)), HasSubstr("rates are of GPUs, with a U-Net of Stable Diffusion 2 "
                                                               "(866 million parameters). This run trains on CPUs."));
  EXPECT_THAT(page_of(unet_run(folder, "cuda", 32)), HasSubstr("This run is not compared: it trains at 32 pixels"));
  auto run = unet_run(folder, "cuda", 512);
  run.model = {{"block_out_channels", {32, 64}}};
  EXPECT_THAT(page_of(run), HasSubstr("This run is not compared: its U-Net is of another size"));
  EXPECT_THAT(page_of(run), Not(HasSubstr("class=\"own\"")));
  run.environment = nullptr;
  run.model = nullptr;
  EXPECT_THAT(page_of(run), HasSubstr("This run is not compared: without environment.json"));
  run.settings.erase("objective.prediction");  // of train-autoencoder
  EXPECT_THAT(page_of(run), Not(HasSubstr("MosaicML")));
}

std::string markdown_of(const test::TempDir& folder) {
  const auto run = read_run(folder.path());
  return render_markdown(make_report(std::span(&run, 1)));
}

const std::string first_start =
    R"({"time":"2026-11-29T00:00:00Z","job":123,"restart":null,"step":0,"checkpoint":null,"ranks":12,)"
    R"("hosts":["n1","n2","n3"],"trainers":8,"producers":4,"changed":{},"before":null})"
    "\n";
const std::string second_start =
    R"({"time":"2026-11-29T05:00:00Z","job":123,"restart":1,"step":4000,"ranks":1,"hosts":["n1"],"trainers":1,)"
    R"("producers":0,"changed":{"optim.lr":["0.0001","0.0002"],"CUDA":["","12.8"]},"before":{"state":"requeue",)"
    R"("step":4000,"reached":4012,"exit":76,"reason":"rank 7 is gone","time":"2026-11-29T04:30:00Z","faults":[]}})"
    "\n";
// 1795929600 is 05:20:00; checkpoints came more often than lines of metrics.jsonl.
const std::string third_start =
    R"({"time":"2026-11-29T05:50:00Z","job":124,"restart":0,"step":4000,"ranks":1,"hosts":["n1"],"trainers":1,)"
    R"("producers":0,"changed":{},"before":{"state":"running","step":4020,"reached":4010,"exit":null,"reason":"",)"
    R"("time":"2026-11-29T05:10:00Z","faults":[{"rank":1,"reason":"then this","time":1795929601},)"
    R"({"rank":2,"reason":"first this","time":1795929600}]}})"
    "\n";

TEST(Report, SaysHowEachStartEndedAndWhatChanged) {
  test::TempDir folder;
  folder.write("starts.jsonl", first_start + second_start + third_start);
  folder.write("metrics.jsonl", "{\"step\":4100,\"loss\":0.5,\"time\":\"2026-11-29T06:00:00Z\"}\n");
  folder.write("STATE", R"({"state":"running","step":4050})");
  const auto page = markdown_of(folder);
  for (const char* text :
       {"3 starts; 32 steps taken again; 0:59:59 between an end and the next start. An end of which there is no word",
        "| began, UTC | ended | how | from step | reached | taken again | ranks | job | changed |\n",
        "| 2026-11-29 00:00:00 | 2026-11-29 04:30:00 | requeue: rank 7 is gone | 0 | 4012 | 12 | 8 trainers, 4 "
        "producers on 3 hosts | 123 | – |\n",
        "| 2026-11-29 05:00:00 | 2026-11-29 05:20:01 | running: rank 2: first this | 4000 | 4020 | 20 | 1 trainer on 1 "
        "host | 123, restart 1 | CUDA: none → 12.8; optim.lr: 0.0001 → 0.0002 |\n",
        "| 2026-11-29 05:50:00 | – | running | 4000 | 4100 | – | 1 trainer on 1 host | 124 | – |\n"})
    EXPECT_THAT(page, HasSubstr(text));
  EXPECT_LT(page.find("## Starts"), page.find("## Events"));

  folder.write("STATE", R"({"state":"failed","step":4050,"reason":"no room"})");
  EXPECT_THAT(markdown_of(folder),
              HasSubstr("| 2026-11-29 05:50:00 | 2026-11-29 06:00:00 | failed: no room | 4000 | 4100 |"));
  folder.write("environment.json", R"({"time":"2026-11-29T07:00:00Z"})");
  EXPECT_THAT(markdown_of(folder), HasSubstr("| failed: no room | 4000 | 4050 |")) << "the line is of a start before";
}

// Steps 7 to 18 were there before a try from step 6, of which two were taken; the next start went on from 18, or again
// from 6.
TEST(Report, StepsBehindATryThatWasGivenUpWereNotTakenAgain) {
  test::TempDir folder;
  const auto start = [](int from, const char* before) {
    return fmt::format(R"({{"time":"2026-11-29T00:00:00Z","step":{},"ranks":1,"trainers":1,"before":{}}})", from,
                       before) +
           "\n";
  };
  const char* until_18 = R"({"state":"done","step":18,"reached":18,"time":"2026-11-29T00:00:00Z","faults":[]})";
  const char* until_8 = R"({"state":"running","step":6,"reached":8,"time":"2026-11-29T00:00:00Z","faults":[]})";
  folder.write("metrics.jsonl", "{\"step\":22,\"loss\":0.5,\"time\":\"2026-11-29T06:00:00Z\"}\n");
  folder.write("STATE", R"({"state":"done","step":22})");
  folder.write("starts.jsonl", start(0, "null") + start(6, until_18) + start(18, until_8));
  auto page = markdown_of(folder);
  EXPECT_THAT(page, HasSubstr("3 starts; 2 steps taken again; "));
  EXPECT_THAT(page, HasSubstr("| done | 0 | 18 | 2 |"));
  EXPECT_THAT(page, HasSubstr("| running: no word of its end | 6 | 8 | – |"));

  folder.write("starts.jsonl", start(0, "null") + start(6, until_18) + start(6, until_8));
  page = markdown_of(folder);
  EXPECT_THAT(page, HasSubstr("3 starts; 14 steps taken again; "));
  EXPECT_THAT(page, HasSubstr("| done | 0 | 18 | 12 |"));
  EXPECT_THAT(page, HasSubstr("| running: no word of its end | 6 | 8 | 2 |"));

  folder.write("starts.jsonl", start(0, "null") + start(6, until_18) + start(18, R"({"state":"did not begin"})"));
  EXPECT_THAT(markdown_of(folder), HasSubstr("3 starts; 0 steps taken again; "));
}

TEST(Report, OneStartIsToldByTheOtherSections) {
  test::TempDir folder;
  folder.write("config.yaml", "");
  folder.write("starts.jsonl", first_start);
  EXPECT_THAT(markdown_of(folder), Not(HasSubstr("## Starts")));
  folder.write("starts.jsonl", second_start);  // it went on with a run of a version that wrote none
  const auto page = markdown_of(folder);
  EXPECT_THAT(page, HasSubstr("2 starts or more; 12 steps taken again; 0:30:00 between an end and the next start.\n"));
  EXPECT_THAT(page, HasSubstr("| – | 2026-11-29 04:30:00 | requeue: rank 7 is gone | – | 4012 | 12 | – | – | – |\n"));
}

TEST(Report, OfManyStartsTheNewestHaveRows) {
  test::TempDir folder;
  folder.write("config.yaml", "");
  std::string lines;
  for (int i = 0; i < 250; ++i)
    lines += fmt::format("{{\"time\":\"2026-11-29T00:00:00Z\",\"step\":{},\"before\":null}}\n", 1000 + i);
  folder.write("starts.jsonl", lines);
  const auto page = markdown_of(folder);
  EXPECT_THAT(page, HasSubstr("250 starts; 0 steps taken again"));
  EXPECT_THAT(page, HasSubstr("| 2026-11-29 00:00:00 | 1150 |\n"));
  EXPECT_THAT(page, Not(HasSubstr("| 1149 |")));
  EXPECT_THAT(page, HasSubstr("The newest 100 of them; "));
}

TEST(Report, OfSeveralRunsThoseThatWereStartedAgainHaveATable) {
  test::TempDir first, second;
  std::vector runs = {long_run(first, 4100), long_run(second, 5)};
  runs[0].name = "often", runs[1].name = "once";
  runs[0].starts = {nlohmann::json::parse(first_start), nlohmann::json::parse(second_start)};
  runs[1].starts = {nlohmann::json::parse(first_start)};
  const auto page = render_markdown(make_report(runs));
  EXPECT_THAT(page, HasSubstr("often: 2 starts; 12 steps taken again"));
  EXPECT_THAT(page, Not(HasSubstr("once: 1 start")));
}

// Whoever made the folder.
TEST(Report, StrangeStartsAreNoCrash) {
  test::TempDir folder;
  folder.write("config.yaml", "");
  const std::string long_text(1'000'000, 'x'), markup = nlohmann::json(hostile.substr(0, hostile.find('\x01'))).dump();
  folder.write(
      "starts.jsonl",
      "[1]\n\"text\"\nnull\n{}\n" +
          fmt::format(
              R"({{"time":7,"job":{{"a":[1]}},"restart":-1,"step":-5,"hosts":"n1","trainers":"8","before":[]}})"
              "\n"
              R"({{"time":{0},"job":{0},"step":1e300,"hosts":[[],{{}}],"trainers":18446744073709551615,)"
              R"("changed":{{"a":1,"b":["x"],{0}:[null,{{"c":[1]}}],"{1}":["{1}",7]}},)"
              R"("before":{{"state":["running"],"step":"4","reached":-7,"reason":7,"time":[],"faults":{{"a":1}}}}}})"
              "\n"
              R"({{"changed":[],"step":0,"before":{{"state":"running","reason":"{1}","time":"2026-11-29T04:34:50Z",)"
              R"("reached":9223372036854775807,"faults":[1,null,[],{{"time":1e18}},{{"rank":{{}},"reason":{0}}}]}}}})"
              "\n",
              markup, long_text) +
          "{\"time\":\"2026-11-29T0");
  const auto run = read_run(folder.path());
  EXPECT_EQ(run.starts.size(), 4u);
  const auto page = page_of(run), markdown = render_markdown(make_report(std::span(&run, 1)));
  expect_well_formed(page);
  expect_harmless(page);
  EXPECT_LT(page.size(), 100'000u);
  EXPECT_THAT(markdown, Not(HasSubstr("<script")));
  EXPECT_THAT(markdown, HasSubstr("4 starts or more; 9223372036854775807 steps taken again"));
  EXPECT_THAT(markdown, HasSubstr("running: " + std::string(191, 'x') + "… |"));
}

// 50 % of a step in the start before, which had another number of producers.
TEST(Report, WhatLimitsTheSpeedIsThatOfTheNewestStart) {
  const auto page_with = [](int steps, const char* started) {
    test::TempDir folder;
    std::string lines;
    for (int step = 1; step <= steps; ++step)
      lines += fmt::format("{{\"step\":{},\"step_ms\":100,\"data_wait_ms\":{},\"time\":\"2026-11-{}T00:00:00Z\"}}\n",
                           step, step <= 20 ? 50 : 1, step <= 20 ? 21 : 23);
    folder.write("metrics.jsonl", lines);
    folder.write("environment.json", fmt::format("{{\"time\":\"2026-11-{}T00:00:00Z\"}}", started));
    return markdown_of(folder);
  };
  EXPECT_THAT(page_with(26, "22"), HasSubstr("| waits for samples | 1.0 % |"));
  EXPECT_THAT(page_with(26, "22"), HasSubstr("The trainers, who wait 1.0 % of their time for samples: producers keep "
                                             "up. Here and below: the median of the second half of the newest start, "
                                             "from step 21 on.\n"));
  const auto early = page_with(24, "22");
  EXPECT_THAT(early, HasSubstr("The producers: trainers wait 50.0 % of their time"));
  EXPECT_THAT(early, HasSubstr("the median of the second half of the run, because the newest start, from step 21 on, "
                               "has logged too little.\n"));
  EXPECT_THAT(page_with(26, "20"), HasSubstr("Here and below: the median of the second half of the run.\n"));
}

// The start before had another number of trainers, and the speed is its own as long as the newest has logged too
// little.
TEST(Report, WhatOneTrainerDoesIsKnownOnceItsStartHasLoggedEnough) {
  for (const int newest : {46, 47}) {
    test::TempDir folder;
    auto run = unet_run(folder, "cuda", 256);
    EXPECT_THAT(page_of(run), HasSubstr("150 img/s (2 of them)"));
    run.newest_start_step = newest;  // of 50
    const auto page = page_of(run);
    if (newest == 46) {
      EXPECT_THAT(page, HasSubstr("150 img/s (2 of them)"));
    } else {
      EXPECT_THAT(page, HasSubstr("has logged too little"));
      EXPECT_THAT(page, Not(HasSubstr("by one trainer")));
      EXPECT_THAT(page, HasSubstr("This run is not compared: its newest start has logged too little."));
    }
  }
}

// Producers are still filling queues in the first one.
TEST(Report, WhatLimitsTheSpeedIsThatOfTheSecondHalf) {
  test::TempDir folder;
  std::string lines;
  for (int step = 1; step <= 20; ++step)
    lines +=
        fmt::format("{{\"step\":{},\"step_ms\":100,\"data_wait_ms\":{},\"producer_stages\":{{\"send_wait\":{}}}}}\n",
                    step, step <= 10 ? 50 : 1, step <= 10 ? 0.25 : 0.75);
  folder.write("metrics.jsonl", lines);
  EXPECT_THAT(markdown_of(folder), HasSubstr("The trainers: producers wait 75.0 % of their time for them. Here and "
                                             "below: the median of the second half of the run.\n"));
}

TEST(Report, StragglersAndSkippedStepsAreDrawnWhereThereWereAny) {
  test::TempDir folder;
  auto run = long_run(folder, 50);
  const auto page = [&] { return render_markdown(make_report(std::span(&run, 1))); };
  run.metrics["skipped"] = {{1, 2, 3}, {0, 0, 0}};
  run.metrics["straggler"] = {{1, 2, 3}, {NAN, 1.2, 1}};
  EXPECT_THAT(page(), Not(HasSubstr("Skipped steps")));
  EXPECT_THAT(page(), Not(HasSubstr("Straggler")));
  run.metrics["skipped"].values[2] = 4;
  run.metrics["straggler"].values[1] = 1.25;
  EXPECT_THAT(page(), HasSubstr("| Skipped steps, since the run began | first | lowest | highest | last |\n"
                                "|---|---|---|---|---|\n|  | 0 | 0 | 4 | 4 |"));
  EXPECT_THAT(page(), HasSubstr("| Straggler, slowest rank / median | first | lowest | highest | last |\n"
                                "|---|---|---|---|---|\n|  | 1.25 | 1 | 1.25 | 1 |"));
  expect_well_formed(page_of(run));
}

TEST(Report, SaysWhereARunRan) {
  test::TempDir folder;
  auto run = unet_run(folder, "cuda", 256);
  const auto page = page_of(run);
  for (const char* text : {"3 on n1, n2", "2 x H100 (trainer)", "1 x A10G (producer)", "1.2"})
    EXPECT_THAT(page, HasSubstr(text));
  for (const char* odd : {"{}", R"({"ranks":7})", R"({"ranks":["a",{"host":[1]}],"millrace":{"<b>":1}})"}) {
    run.environment = nlohmann::json::parse(odd);
    expect_well_formed(page_of(run));
  }
  run.environment = nullptr;
  EXPECT_THAT(page_of(run), HasSubstr("Not known: there is no environment.json"));
}

TEST(Report, SettingsAreComparedWithTheRunsTemplate) {
  test::TempDir folder;
  folder.write("template.yaml", "# configs/a.yaml\n# b.yaml\nduration: 100 steps\nrun:\n  dir: ???\n  seed: 3\n");
  folder.write("config.yaml", "duration: 100 steps\nrun:\n  dir: here\n  seed: 4\n");
  auto run = read_run(folder.path());
  EXPECT_EQ(run.base.name, "configs/a.yaml, b.yaml");
  const auto page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("## Configuration: what is not as in configs/a.yaml, b.yaml"));
  EXPECT_THAT(page, HasSubstr("| `run.seed` | 4 | 3 |"));
  EXPECT_THAT(page, Not(HasSubstr("`duration`")));
}

TEST(Report, EvaluationsOfTheLossAloneHaveTheirNumbers) {
  test::TempDir folder;
  auto run = long_run(folder, 50);
  run.evaluations = {nlohmann::json::parse(
      R"({"step":50,"loss":{"0-99":0.25,"100-199":0.75},"protocol":{"preset":"custom","metrics":[]}})")};
  auto page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("| step | loss | protocol |\n|---|---|---|\n| 50 | ≈ 0.5 | A |"));
  EXPECT_THAT(page, HasSubstr("Protocol A: metrics = \\[\\], preset = custom."));
  EXPECT_THAT(page_of(run), HasSubstr("Loss by timestep"));
  run.evaluations[0]["loss_mean"] = 0.3;  // of all samples, most of which lie in the first bucket
  EXPECT_THAT(render_markdown(make_report(std::span(&run, 1))), HasSubstr("| 50 | 0.3 | A |"));
  run.evaluations.push_back(nlohmann::json::parse(
      R"({"step":50,"guidance_scale":3,"images":7,"kid":0.025,"kid_std":0.003,"protocol":{"preset":"mlperf"}})"));
  page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("| 50 | 3 | 7 | 0.025 ± 0.003 | – | B |"));
  run.evaluations[1]["clip_score"] = 21.5, run.evaluations[1]["clip_score_std"] = 3.25;
  EXPECT_THAT(render_markdown(make_report(std::span(&run, 1))),
              HasSubstr("| 0.025 ± 0.003 | 21.5 (std 3.25) | – | B |"));
}

// `evaluate --pipeline DIR --out RUN` adds lines of other models.
TEST(Report, EvaluationsOfOtherModelsHaveTheirNames) {
  test::TempDir folder;
  auto run = long_run(folder, 50);
  for (const char* line : {R"({"checkpoint":"/models/sd2/","fid":12.5,"loss":{"0-99":0.25}})",
                           R"({"checkpoint":"tiny","fid":13.5})", R"({"step":50,"checkpoint":"c/step-50","fid":11.5})"})
    run.evaluations.push_back(nlohmann::json::parse(line));
  const auto page = render_markdown(make_report(std::span(&run, 1)));
  for (const char* row : {"| sd2 | 12.5 | ", "| tiny | 13.5 | ", "| 50 | 11.5 | "}) EXPECT_THAT(page, HasSubstr(row));
  EXPECT_THAT(page, Not(HasSubstr("Loss by timestep"))) << "it is not the run's";
}

// Pictures compare where objectives differ, their losses do not.
TEST(Report, EvaluationsTellHowTheirLossesWereMeasured) {
  test::TempDir folder;
  auto run = long_run(folder, 50);
  const auto line = [](int step, const char* gamma) {
    return nlohmann::json::parse(fmt::format(
        R"({{"step":{},"loss_mean":0.5,"protocol":{{"steps":50,"tokenizer":{{"mode":"open_clip"}},"loss":{{"snr_gamma":{}}}}}}})",
        step, gamma));
  };
  run.evaluations = {line(25, "null")};
  auto page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("| 25 | mode = open_clip | 0.5 | A |"));
  EXPECT_THAT(page, HasSubstr("Protocol A: steps = 50."));
  EXPECT_THAT(page, HasSubstr("Loss: snr_gamma = none."));
  run.evaluations.push_back(line(50, "5.0"));
  page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("| 50 | mode = open_clip | 0.5 | Ab |"));
  run.evaluations[1]["loss_mean_unweighted"] = 0.75;
  run.evaluations[1]["protocol"].erase("tokenizer");  // it is the model's
  page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("| 25 | mode = open_clip | 0.5 | Aa |"));
  EXPECT_THAT(page, HasSubstr("| 50 | – | 0.5 (without weights 0.75) | Ab |"));
  EXPECT_THAT(page, HasSubstr("Loss b: snr_gamma = 5.0."));
}

// Curves by timestep are without weights, EMA's and raw weights' apart, and say how they were measured.
TEST(Report, LossesByTimestepAreOfOneKind) {
  test::TempDir first, second;
  std::vector runs = {long_run(first, 50), long_run(second, 50)};
  runs[0].name = "plain", runs[1].name = "weighted";
  const auto line = [](const char* weights, double loss, double unweighted, const char* gamma) {
    return nlohmann::json{{"step", 50},
                          {"weights", weights},
                          {"loss", {{"0-99", loss}}},
                          {"loss_unweighted", {{"0-99", unweighted}}},
                          {"protocol", {{"loss", {{"snr_gamma", gamma}}}}}};
  };
  runs[0].evaluations = {line("ema", 0.5, 0, "none"), line("raw", 0.25, 0, "none")};
  for (auto& each : runs[0].evaluations) each.erase("loss_unweighted");
  runs[1].evaluations = {line("ema", 0.125, 0.75, "5")};
  const auto page = [&] { return render_markdown(make_report(runs)); };
  for (const char* row : {"| plain (a) | 0.5 | 0.5 | 0.5 | 0.5 |", "| plain raw weights (a) | 0.25 | 0.25 |",
                          "| weighted (b) | 0.75 | 0.75 | 0.75 | 0.75 |"})
    EXPECT_THAT(page(), HasSubstr(row));
  EXPECT_THAT(page(), HasSubstr("| plain | 50 | raw |"));
  runs[1].settings["objective.snr_gamma"] = "5";  // and a line of before, with weights
  runs[1].evaluations[0].erase("loss_unweighted"), runs[1].evaluations[0].erase("protocol");
  EXPECT_THAT(page(), Not(HasSubstr("| weighted (b)")));
  EXPECT_THAT(page(), Not(HasSubstr("| weighted | 0.125")));
}

// A run that went on from its end may have been exported at that end.
TEST(Report, AnExportOfAnEarlierEndIsNotTheRunsModel) {
  test::TempDir folder;
  folder.write("metrics.jsonl", "{\"step\":9,\"loss\":0.5}\n");
  folder.write("STATE", R"({"state":"done","step":9,"checkpoint":"c"})");
  const auto next = [&] {
    const auto run = read_run(folder.path());
    return render_markdown(make_report(std::span(&run, 1)));
  };
  const auto out = " --out " + folder.path().string() + "/pipeline";
  EXPECT_THAT(next(), HasSubstr(out + " |"));
  const auto card = [&](const std::string& name, int step) {
    std::filesystem::create_directories(folder.path() / name);
    folder.write(name + "/README.md", fmt::format("# Trained\n\n| steps | {} |\n", step));
  };
  card("pipeline", 7);
  EXPECT_THAT(next(), HasSubstr(out + "-9 |"));
  EXPECT_THAT(next(), Not(HasSubstr("is its model")));
  card("pipeline-9", 9);
  EXPECT_THAT(next(), HasSubstr("/pipeline-9 is its model"));
  card("pipeline", 9);
  EXPECT_THAT(next(), HasSubstr("/pipeline is its model"));
}

// Numbers of different protocols are not points of one curve.
TEST(Report, EvaluationsOfSeveralProtocolsHaveCurvesOfTheirOwn) {
  test::TempDir folder;
  auto run = long_run(folder, 50);
  const auto add = [&](int step, int scale, double fid, double clip, const char* sampler) {
    run.evaluations.push_back({{"step", step},
                               {"guidance_scale", scale},
                               {"fid", fid},
                               {"clip_score", clip},
                               {"protocol", {{"sampler", sampler}}}});
  };
  add(25, 3, 40, 20, "ddim");
  add(25, 9, 41, 21, "ddim");
  add(50, 3, 30, 22, "ddim");
  add(50, 3, 10, 23, "euler");
  const auto page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("| scale 3 (A) | 40 | 30 | 40 | 30 |"));
  EXPECT_THAT(page, HasSubstr("| scale 3 (B) | 10 | 10 | 10 | 10 |"));
  EXPECT_THAT(page, HasSubstr("|  | 40 | 40 | 41 | 41 |"))
      << "the sweep is that of step 25: of step 50 there is a point";
  run.evaluations.pop_back();
  EXPECT_THAT(render_markdown(make_report(std::span(&run, 1))), HasSubstr("| scale 3 | 40 | 30 | 40 | 30 |"));
}

// At high guidance the CLIP score falls again; two scales of one CLIP score are two points.
TEST(Report, ASweepIsInTheOrderOfItsScales) {
  test::TempDir folder;
  auto run = long_run(folder, 50);
  for (const auto& [scale, clip, fid] :
       {std::tuple{7, 24.0, 22.0}, std::tuple{1, 20.0, 30.0}, std::tuple{8, 24.0, 24.0}, std::tuple{6, 25.0, 20.0}})
    run.evaluations.push_back({{"step", 50}, {"guidance_scale", scale}, {"fid", fid}, {"clip_score", clip}});
  const auto page = render_markdown(make_report(std::span(&run, 1)));
  EXPECT_THAT(page, HasSubstr("|  | 30 | 20 | 30 | 24 |"));
}

// A run that weights its losses stands beside one that does not by losses without weights.
TEST(Report, LossesWithOtherWeightsAreComparedWithoutThem) {
  test::TempDir first, second;
  std::vector runs = {long_run(first, 50), long_run(second, 50)};
  const auto page = [&] { return render_markdown(make_report(runs)); };
  runs[0].metrics["validation_loss"] = {{50}, {0.5}};
  runs[1].metrics["validation_loss"] = {{50}, {0.125}};
  EXPECT_THAT(page(), Not(HasSubstr("without weights")));
  runs[1].metrics["validation_loss_unweighted"] = {{50}, {0.75}};
  runs[0].name = "plain";
  runs[1].name = "weighted";
  EXPECT_THAT(page(), HasSubstr("Validation loss without weights"));
  EXPECT_THAT(page(), HasSubstr("| plain | 0.5 | 0.5 | 0.5 | 0.5 |"));
  EXPECT_THAT(page(), HasSubstr("| weighted | 0.75 | 0.75 | 0.75 | 0.75 |"));
  runs[1].metrics["validation_loss"] = {{50, 60}, {0.125, 0.875}};  // it went on without weights
  EXPECT_THAT(page(), HasSubstr("| weighted | 0.75 | 0.75 | 0.875 | 0.875 |"));
  EXPECT_THAT(page(), HasSubstr("| validation loss without weights | 0.5 | 0.875 |"));
  runs[0].settings["objective.snr_gamma"] = "5";  // of a version that does not tell it
  EXPECT_THAT(page(), Not(HasSubstr("| plain | 0.5 | 0.5 | 0.5 | 0.5 |\n| weighted | 0.75 ")));
}

TEST(Report, ShowsSinceWhenLossesAreNotNumbers) {
  test::TempDir folder;
  folder.write("metrics.jsonl", "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":null}\n");
  const auto run = read_run(folder.path());
  EXPECT_THAT(page_of(run), HasSubstr("0.5 (smoothed), not a number since step 2"));
}

// The promise of the contract: 550,000 steps in 30 s and 6 MB.
TEST(Report, OfALongRunIsSmall) {
  test::TempDir folder;
  const std::vector runs = {long_run(folder, 55'000)};
  EXPECT_LT(render_html(make_report(runs)).size(), 600'000u);
}

}  // namespace
}  // namespace millrace
