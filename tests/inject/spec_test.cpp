#include "inject/spec.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace millrace::inject {
namespace {

TEST(InjectSpec, AShortOneMeansTheFirstCallOfAnyKindInAPhase) {
  const auto spec = parse_spec("kill@1:40:waiting-for-samples");
  EXPECT_EQ(spec.kind, Kind::kill);
  EXPECT_EQ(spec.rank, 1);
  EXPECT_EQ(spec.step, 40);
  EXPECT_EQ(spec.phase, "waiting for samples");
  EXPECT_FALSE(spec.call);
  EXPECT_EQ(spec.first, 1);
  EXPECT_FALSE(spec.onwards);
}

TEST(InjectSpec, AWholeOneNamesPhaseCallPathNumberAndTime) {
  const auto spec = parse_spec("eio@*:*:saving/read=run/a=b:3+:60");
  EXPECT_FALSE(spec.rank);
  EXPECT_FALSE(spec.step);
  EXPECT_EQ(spec.phase, "saving");
  EXPECT_EQ(spec.call, Call::read);
  EXPECT_EQ(spec.path, "run/a=b");
  EXPECT_EQ(spec.first, 3);
  EXPECT_TRUE(spec.onwards);
  EXPECT_EQ(spec.seconds, 60);
}

TEST(InjectSpec, WhatMakesNoSenseIsRefused) {
  for (const char* text :
       {"", "kill", "kil@0:1:saving", "kill@x:1:saving", "kill@0:-1:saving", "kill@0:1:", "kill@0:1:wrte=file",
        "kill@0:1:saving/wrte", "kill@0:1:write:0", "kill@0:1:write:two", "slow@0:1:write:1:long"})
    EXPECT_THROW(parse_spec(text), std::invalid_argument) << text;
}

TEST(InjectSpec, PathsAreComparedWithoutWhatDiffersFromRunToRun) {
  EXPECT_EQ(stable_name("/r/STATE.tmp-1a-2b"), "/r/STATE.tmp");
  EXPECT_EQ(stable_name("/r/step-2.tmp-1a-2b/shard.tmp-3c"), "/r/step-2.tmp/shard.tmp");
  EXPECT_EQ(stable_name("/r/tensorboard/events.out.tfevents.17.host.4.0"), "/r/tensorboard/events");
  EXPECT_EQ(stable_name("/tmp/c/tmp/0a1b2c3d4e5f6071-9c1e22aa01b3f7d4-12345.h5"), "/tmp/c/tmp/scratch.h5");
  EXPECT_EQ(stable_name("/tmp/c/rows/part-0/0000000000-9c1e22aa01b3f7d4.h5"),
            "/tmp/c/rows/part-0/0000000000-9c1e22aa01b3f7d4.h5");
  EXPECT_TRUE(is_of("/r/STATE.tmp", "r/STATE.tmp"));
  EXPECT_FALSE(is_of("/r/STATE.tmp", "r/STATE"));
  EXPECT_TRUE(is_of("/r/archives/a.tar", "archives/"));
}

}  // namespace
}  // namespace millrace::inject
