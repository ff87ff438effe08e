#include "millrace/io/json.h"

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

TEST(Json, WritesInTheReferenceStyle) {
  EXPECT_EQ(format_json({{"b", {1, 2}}, {"a", "ü"}, {"c", nlohmann::json::array()}}),
            "{\n  \"a\": \"\\u00fc\",\n  \"b\": [\n    1,\n    2\n  ],\n  \"c\": []\n}\n");
}

}  // namespace
}  // namespace millrace::test
