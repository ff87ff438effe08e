// Merging against its definitions: the reference's way (all occurrences of the best pair, then the next) and the rule
// of transformers' tokenizers (one pair at a time), both as slow and as plain as they can be.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "dataset/temp_archives.h"
#include "millrace/text/tokenizer_folder.h"
#include "tokenizer_bpe.h"

namespace millrace {
namespace {

using Word = std::vector<std::string>;
using Pair = std::pair<std::string, std::string>;

// The merges of a small alphabet, and the files that hold them.
struct Merges {
  std::vector<Pair> pairs;  // in the order of learning

  BytePairs load(const test::TempFolder& folder) const {
    nlohmann::json vocabulary;
    const auto add = [&](const std::string& token) { vocabulary.emplace(token, vocabulary.size()); };
    for (const std::string& symbol : byte_symbols()) add(symbol), add(symbol + "</w>");
    std::string lines = "#version: 0.2\n";
    for (const auto& [left, right] : pairs) {
      add(left + right);
      lines += left + " " + right + "\n";
    }
    folder.write("vocab.json", vocabulary.dump());
    folder.write("merges.txt", lines);
    return BytePairs::load(folder.path("vocab.json"), folder.path("merges.txt"));
  }

  std::map<Pair, int> ranks() const {
    std::map<Pair, int> ranks;
    for (const Pair& pair : pairs) ranks.emplace(pair, ranks.size());
    return ranks;
  }
};

// As they are learnt: out of tokens that are there, each new token once.
Merges learn(std::mt19937& random, const std::string& alphabet, std::size_t count) {
  Merges merges;
  std::vector<std::string> tokens;
  for (const char c : alphabet) tokens.insert(tokens.end(), {std::string(1, c), std::string(1, c) + "</w>"});
  std::set<std::string> known(tokens.begin(), tokens.end());
  while (merges.pairs.size() < count) {
    const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
    if (left.ends_with("</w>") || !known.insert(left + right).second) continue;
    merges.pairs.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  return merges;
}

Word symbols_of(const std::string& word) {
  Word symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  symbols.back() += "</w>";
  return symbols;
}

const std::map<Pair, int>::value_type* best_pair(const Word& word, const std::map<Pair, int>& ranks) {
  const std::map<Pair, int>::value_type* best = nullptr;
  for (std::size_t i = 0; i + 1 < word.size(); ++i) {
    const auto found = ranks.find({word[i], word[i + 1]});
    if (found != ranks.end() && (!best || found->second < best->second)) best = &*found;
  }
  return best;
}

// bpe() of CLIP's simple_tokenizer.py; with `one_at_a_time` only the first occurrence is merged before looking again.
Word merge_slowly(Word word, const std::map<Pair, int>& ranks, bool one_at_a_time) {
  while (const auto* best = best_pair(word, ranks)) {
    Word merged;
    bool done = false;
    for (std::size_t i = 0; i < word.size(); ++i) {
      if (!done && i + 1 < word.size() && Pair(word[i], word[i + 1]) == best->first) {
        merged.push_back(word[i] + word[i + 1]);
        ++i;
        done = one_at_a_time;
      } else {
        merged.push_back(word[i]);
      }
    }
    word = std::move(merged);
  }
  return word;
}

std::vector<std::int32_t> ids_of(const Word& word, const BytePairs& pairs) {
  std::vector<std::int32_t> ids;
  for (const std::string& token : word) ids.push_back(pairs.find(token));
  return ids;
}

std::vector<std::int32_t> encode(const BytePairs& pairs, const std::string& word) {
  std::vector<std::int32_t> ids;
  pairs.encode(word, ids);
  return ids;
}

std::string random_word(std::mt19937& random, const std::string& alphabet) {
  std::string word(1 + random() % 40, alphabet[0]);
  if (random() % 4)
    for (char& c : word) c = alphabet[random() % alphabet.size()];
  return word;
}

TEST(BytePairs, MergeAsTheDefinitionsDo) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const test::TempFolder folder;
    const std::string alphabet = std::string("abcd").substr(0, 1 + random() % 4);
    const Merges merges = learn(random, alphabet, 1 + random() % (alphabet.size() == 1 ? 8 : 40));
    const BytePairs pairs = merges.load(folder);
    const auto ranks = merges.ranks();
    for (int i = 0; i < 100; ++i) {
      const std::string word = random_word(random, alphabet);
      const auto ids = encode(pairs, word);
      ASSERT_EQ(ids, ids_of(merge_slowly(symbols_of(word), ranks, false), pairs)) << word;
      ASSERT_EQ(ids, ids_of(merge_slowly(symbols_of(word), ranks, true), pairs)) << word;
    }
  }
}

// Where a pair comes before the ones that make its parts, as in no learnt file, the two rules differ; this is
// transformers'.
TEST(BytePairs, MergeOnePairAtATimeInAnyOrder) {
  std::mt19937 random(8);
  int differences = 0;
  for (int round = 0; round < 60; ++round) {
    const test::TempFolder folder;
    Merges merges = learn(random, "ab", 20);
    std::shuffle(merges.pairs.begin(), merges.pairs.end(), random);
    const BytePairs pairs = merges.load(folder);
    const auto ranks = merges.ranks();
    for (int i = 0; i < 100; ++i) {
      const std::string word = random_word(random, "ab");
      const Word merged = merge_slowly(symbols_of(word), ranks, true);
      ASSERT_EQ(encode(pairs, word), ids_of(merged, pairs)) << word;
      differences += merged != merge_slowly(symbols_of(word), ranks, false);
    }
  }
  EXPECT_GT(differences, 0);
}

// NOTE [One pair at a time] in tokenizer_bpe.cpp rests on this.
TEST(BytePairs, ClipsPairsComeBehindTheirParts) {
  if (!fs::exists(MILLRACE_CLIP_VOCABULARY)) GTEST_SKIP() << "no vocabulary: run scripts/setup";
  const test::TempFolder folder;
  write_clip_tokenizer_folder(MILLRACE_CLIP_VOCABULARY, folder.path("clip"), "!");
  std::set<std::string> known;
  for (const std::string& symbol : byte_symbols()) known.insert({symbol, symbol + "</w>"});
  std::ifstream lines(folder.path("clip/merges.txt"));
  std::string left, right;
  std::getline(lines, left);
  int pairs = 0;
  for (; lines >> left >> right; ++pairs) {
    EXPECT_TRUE(known.contains(left) && known.contains(right)) << left << " " << right;
    EXPECT_TRUE(known.insert(left + right).second) << left << " " << right;
  }
  EXPECT_EQ(pairs, 48894);
}

}  // namespace
}  // namespace millrace
