#include "millrace/io/json.h"
#include "millrace/core/stopwatch.h"
#include "support.h"

namespace millrace::test {
namespace {

TEST(Json, ReadsAValue) {
  EXPECT_EQ(parse_json(R"({"a":[1,{"b":null}],"c":{"a":2}})", "x")["c"]["a"], 2);
}

TEST(Json, RefusesWhatIsNotStrict) {
  for (const char* text : {"", "{", "{} {}", R"({"a":1,"a":2})", R"({"x":{"b":1,"c":2,"b":1}})", "[1,]", "NaN",
                           "{\"a\":\"\xff\"}", "// c\n1"}) {
    const Error error = error_of([&] { parse_json(text, "some.json"); });
    EXPECT_EQ(error.exit(), Exit::io) << text;
    EXPECT_NE(std::string(error.what()).find("some.json"), std::string::npos);
  }
}

TEST(Json, DeepNestingIsAnErrorNotACrash) {
  EXPECT_EQ(error_of([] { parse_json(std::string(5'000'000, '['), "deep"); }).exit(), Exit::io);
  EXPECT_NO_THROW(parse_json(std::string(60, '[') + std::string(60, ']'), "shallow"));
}

TEST(Json, ARepeatedKeyIsNamedHoweverDeepItIs) {
  const auto refusal = [](const char* text) {
    return std::string(error_of([&] { parse_json(text, "a.json"); }).what());
  };
  EXPECT_EQ(refusal(R"([{"a":1},{"a":{"b":[],"c":{"b":2}}},[{"d":1,"e":2,"d":{}}]])"),
            "a.json: the key 'd' occurs twice");
  EXPECT_EQ(refusal(R"({"a":{"b":1},"a":{"b":1}})"), "a.json: the key 'a' occurs twice");
  EXPECT_EQ(parse_python_json(R"([{"a":1,"a":NaN}])", "a.json")[0]["a"], nullptr);
}

// In a parser that looks at all elements of a list behind each this takes minutes; else a second or two.
TEST(Json, ALongListTakesNoLongerPerElement) {
  std::string text = "[";
  for (int i = 0; i < 200'000; ++i) text += fmt::format(R"({{"name":"{}","rows":[{}]}},)", i, i);
  text.back() = ']';
  const Stopwatch watch;
  EXPECT_EQ(parse_json(text, "a.json").back().at("rows").at(0), 199'999);
  EXPECT_EQ(parse_python_json(text, "a.json").size(), 200'000u);
  EXPECT_LT(watch.seconds(), 40);
}

TEST(Json, AFileThatHasToHoldAnObjectDoes) {
  const ScratchDirectory scratch;
  EXPECT_EQ(read_json_object(scratch.write("a.json", R"({"a": 1})"))["a"], 1);
  for (const char* text : {"[1]", "1", "null", "{", ""}) {
    const fs::path path = scratch.write("b.json", text);
    const Error error = error_of([&] { read_json_object(path); });
    EXPECT_EQ(error.exit(), Exit::io) << text;
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
  EXPECT_EQ(error_of([&] { read_json_object(scratch / "none.json"); }).exit(), Exit::io);
}

TEST(Json, AMissingNumberIsNull) {
  constexpr std::uint64_t most = -1;
  for (const std::optional<std::uint64_t> number :
       {std::optional(most), std::optional<std::uint64_t>(0), std::optional<std::uint64_t>()})
    EXPECT_EQ(optional_from_json(optional_to_json(number)), number);
  EXPECT_EQ(optional_to_json(std::nullopt).dump(), "null");
  EXPECT_THROW(optional_from_json("7"), nlohmann::json::type_error);
}

TEST(Json, WritesInTheReferenceStyle) {
  EXPECT_EQ(format_json({{"b", {1, 2}}, {"a", "ü"}, {"c", nlohmann::json::array()}}),
            "{\n  \"a\": \"\\u00fc\",\n  \"b\": [\n    1,\n    2\n  ],\n  \"c\": []\n}\n");
}

}  // namespace
}  // namespace millrace::test
