#include "millrace/core/secrets.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace millrace {
namespace {

TEST(WithoutSecrets, HidesUserAndPassword) {
  EXPECT_EQ(without_secrets("https://alice:hunter2@data.org/0.tar: 404"), "https://***@data.org/0.tar: 404");
  EXPECT_EQ(without_secrets("https://hf_token@data.org"), "https://***@data.org");
  EXPECT_EQ(without_secrets("https://a:p@ss@data.org/x@y.tar"), "https://***@data.org/x@y.tar");
  EXPECT_EQ(without_secrets("https://data.org/x@y.tar?to=a@b"), "https://data.org/x@y.tar?to=a@b");
  EXPECT_EQ(without_secrets("two: s3://u:p@a/1, s3://u:p@b/2"), "two: s3://***@a/1, s3://***@b/2");
}

// Amazon's, Google's and Azure's presigned addresses.
TEST(WithoutSecrets, HidesParametersByTheirNames) {
  EXPECT_EQ(without_secrets("http://h/0.tar?X-Amz-Date=2026&X-Amz-Credential=AKIA%2Fx&X-Amz-Signature=ab12"),
            "http://h/0.tar?X-Amz-Date=2026&X-Amz-Credential=***&X-Amz-Signature=***");
  EXPECT_EQ(without_secrets("http://h/0.tar?X-Goog-Signature=ab12&part=3"),
            "http://h/0.tar?X-Goog-Signature=***&part=3");
  EXPECT_EQ(without_secrets("http://h/0.tar?sv=2024&sig=a%2Bb%3D: 403"), "http://h/0.tar?sv=2024&sig=*** 403");
  EXPECT_EQ(without_secrets("'http://h/0.tar?token=abc' failed"), "'http://h/0.tar?token=***' failed");
  EXPECT_EQ(without_secrets("path: [http://h/0?key=a, http://h/1?key=b]"),
            "path: [http://h/0?key=***, http://h/1?key=***]");
  EXPECT_EQ(without_secrets("http://h/0.tar?monkey=abc&keys=2&max_tokens=7&token="),
            "http://h/0.tar?monkey=abc&keys=2&max_tokens=7&token=");
}

TEST(WithoutSecrets, HidesHeadersOfCommands) {
  EXPECT_EQ(without_secrets(R"(["pipe:curl -H \"Authorization: Bearer hf_abc\" http://h/0.tar"])"),
            R"(["pipe:curl -H \"Authorization:***\" http://h/0.tar"])");
  EXPECT_EQ(without_secrets("pipe:curl -H Authorization:x http://h/0.tar"),
            "pipe:curl -H Authorization:*** http://h/0.tar");
  EXPECT_EQ(without_secrets("< Authorization: Bearer x\n< Host: h"), "< Authorization:***\n< Host: h");
  EXPECT_EQ(without_secrets("pipe:curl -H \"authorization: Bearer hf_abc\" -s http://h/0.tar"),
            "pipe:curl -H \"authorization:***\" -s http://h/0.tar");
}

TEST(WithoutSecrets, HidesWordsOfCommandsByTheirNames) {
  EXPECT_EQ(without_secrets("pipe:AWS_SECRET_ACCESS_KEY=ab/12+3 aws s3 cp s3://b/0.tar -"),
            "pipe:AWS_SECRET_ACCESS_KEY=*** aws s3 cp s3://b/0.tar -");
  EXPECT_EQ(without_secrets("pipe:HF_TOKEN='h f' get --password=p --token \"x y\" http://h/0.tar"),
            "pipe:HF_TOKEN='***' get --password=*** --token \"***\" http://h/0.tar");
  EXPECT_EQ(without_secrets(R"(["pipe:S3_KEY=\"x\" get --token \"x y\" --token  z http://h"])"),
            R"(["pipe:S3_KEY=\"***\" get --token \"***\" --token  *** http://h"])");
  for (const char* text : {"data.train.columns.key=id", "pipe:get --key-file k --tokenizer=clip http://h", "KEYS=3 x",
                           "set model.pipeline=/a/token=1 ", "--config a.yaml key=value",
                           "override: 'foo': expected KEY=VALUE", "lr=1e-4 --token-count 5 --password-file=/p"})
    EXPECT_EQ(without_secrets(text), text);
}

TEST(WithoutSecrets, HidesPasswordsWithASlash) {
  EXPECT_EQ(without_secrets("https://me:ab/cd@host/0.tar"), "https://***@host/0.tar");
  for (const char* text : {"http://h:8080/a@2x.jpg", "http://[::1]:80/a@b", "http://h:{8000..8003}/a@2x.jpg"})
    EXPECT_EQ(without_secrets(text), text);
}

// Before anything asks.
const bool variables_are_set = setenv("WDS_HF_TOKEN", "hf_abcdef", 1) == 0 &&
                               setenv("WDS_TOKENIZER", "/models/clip", 1) == 0 && setenv("WDS_KEY", "short", 1) == 0;

TEST(WithoutSecrets, HidesValuesOfVariablesByTheirNames) {
  ASSERT_TRUE(variables_are_set);
  EXPECT_EQ(without_secrets("pipe:get --with hf_abcdef /models/clip/0.tar hf_abcdef short"),
            "pipe:get --with *** /models/clip/0.tar *** short");
}

TEST(WithoutSecrets, LeavesEverythingElse) {
  for (const char* text : {"", "?", "a & b", "what?", "a=b", "/data/?x=1.tar", "why? token: no", "://", "step 3 of 4"})
    EXPECT_EQ(without_secrets(text), text);
}

}  // namespace
}  // namespace millrace
