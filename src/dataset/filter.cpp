#include "millrace/dataset/filter.h"

#include <fmt/ranges.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/text.h"
#include "millrace/core/visible.h"
#include "millrace/dataset/row.h"
#include "millrace/io/json.h"

namespace millrace {

using nlohmann::json;

namespace {

bool may_stand_bare(UChar32 c) {
  if (c < 0x80) return u_isalnum(c) || std::string_view("_.:/+-").find(static_cast<char>(c)) != std::string_view::npos;
  return (U_GET_GC_MASK(c) & (U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK)) != 0;
}

// Bytes of the character at the start of `text` if it may stand in bare text, else 0.
std::size_t bare_character(std::string_view text) {
  std::size_t next = 0;
  UChar32 c = U_SENTINEL;
  if (!text.empty()) U8_NEXT(text.data(), next, text.size(), c);
  return c != U_SENTINEL && may_stand_bare(c) ? next : 0;
}

}  // namespace

// One field's expression, read from left to right.
class FilterParser {
 public:
  FilterParser(std::string_view section, std::string_view field, std::string_view text)
      : section_(section), field_(field), text_(text), rest_(text) {}

  Filter::Condition parse() {
    if (valid_utf8(text_) != text_) wrong("not valid UTF-8");
    Filter::Condition condition{std::string(field_), std::string(text_), {}};
    do {
      condition.terms.push_back(term());
    } while (take_word("and"));
    if (!at_end()) wrong("an `and` or the end is expected at '{}'", visible_line(rest_));
    return condition;
  }

 private:
  using Op = Filter::Op;

  Filter::Term term() {
    static constexpr std::pair<std::string_view, Op> signs[] = {{"<=", Op::less_equal}, {">=", Op::greater_equal},
                                                                {"==", Op::equal},      {"!=", Op::not_equal},
                                                                {"<", Op::less},        {">", Op::greater}};
    for (const auto& [sign, op] : signs) {
      if (take(sign)) return comparison(op);
    }
    if (take_word("in")) return one_of();
    Filter::Term term{Op::equal, values()};
    if (!take("..")) return term;
    term = {Op::range, {term.values.back(), value()}};
    if (term.values[0].index() != term.values[1].index() || std::holds_alternative<bool>(term.values[0]))
      wrong("a range needs two numbers or two texts");
    return term;
  }

  Filter::Term comparison(Op op) {
    const bool ordered = op != Op::equal && op != Op::not_equal;
    Filter::Term term{op, values()};
    if (ordered && std::holds_alternative<bool>(term.values[0])) wrong("true and false have no order");
    return term;
  }

  Filter::Term one_of() {
    Filter::Term term{Op::in, {}};
    if (!take("[")) wrong("`in` needs a list [..]");
    do {
      for (Filter::Value& value : values()) term.values.push_back(std::move(value));
    } while (take(","));
    if (!take("]")) wrong("the list is not closed by ]");
    return term;
  }

  // Without quotes a True may be Python's spelling of true, or a text.
  std::vector<Filter::Value> values() {
    skip_space();
    const bool is_quoted = rest_.starts_with('"') || rest_.starts_with('\'');
    const Filter::Value written = value();
    const auto* const text = is_quoted ? nullptr : std::get_if<std::string>(&written);
    if (text && (*text == "True" || *text == "TRUE")) return {true, written};
    if (text && (*text == "False" || *text == "FALSE")) return {false, written};
    return {written};
  }

  Filter::Value value() {
    skip_space();
    if (rest_.empty()) wrong("a value is missing at the end");
    if (rest_.front() == '"' || rest_.front() == '\'') return quoted(rest_.front());
    const std::string_view word = bare_word();
    if (word.empty()) wrong("a value is expected at '{}'", visible_line(rest_));
    if (word == "true" || word == "false") return word == "true";
    if (const auto number = to_number(word)) return *number;
    return std::string(word);
  }

  std::string quoted(char quote) {
    const std::size_t end = rest_.find(quote, 1);
    if (end == rest_.npos) wrong("a quote is not closed");
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  // Letters and digits of any script and _ . : / + -, up to a range's two dots.
  std::string_view bare_word() {
    std::size_t end = 0;
    while (!rest_.substr(end).starts_with("..")) {
      const std::size_t bytes = bare_character(rest_.substr(end));
      if (bytes == 0) break;
      end += bytes;
    }
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }

  std::optional<Filter::Number> to_number(std::string_view word) {
    if (word.starts_with('+') && !word.starts_with("+-")) word.remove_prefix(1);
    if (const auto whole = parse_number<std::int64_t>(word)) return *whole;
    if (const auto whole = parse_number<std::uint64_t>(word)) return *whole;
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (end != word.data() + word.size() || error == std::errc::invalid_argument) return std::nullopt;
    if (error != std::errc()) wrong("{} is beyond the numbers that a computer knows", word);
    if (!std::isfinite(number)) return std::nullopt;  // the words inf and nan
    return number;
  }

  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  void skip_space() {
    while (!rest_.empty() && is_space(rest_.front())) rest_.remove_prefix(1);
  }
  bool at_end() {
    skip_space();
    return rest_.empty();
  }
  bool take(std::string_view sign) {
    skip_space();
    if (!rest_.starts_with(sign)) return false;
    rest_.remove_prefix(sign.size());
    return true;
  }
  // Like `take`, but the word must end there.
  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    const std::string_view after = rest_.substr(word.size());
    if (after.empty() || (!is_space(after.front()) && after.front() != '[')) return false;
    rest_ = after;
    return true;
  }

  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(
        Exit::usage,
        fmt::format("{}.filters.{}: '{}': {}", section_, visible_line(field_), visible_line(text_),
                    fmt::format(format, std::forward<Args>(args)...)),
        "examples: \"<=0.5\", \">=512 and <2048\", \"in [en, de]\", \"0.5..1\", \"!= 'UNLIKELY'\"; text of other "
        "characters than letters, digits and _ . : / + - stands in quotes");
  }

  std::string_view section_, field_, text_, rest_;
};

namespace {

// What strangers wrote, for a message.
std::string shorten(std::string_view utf8) {
  constexpr std::int32_t longest = 40;
  std::int32_t end = longest;
  if (utf8.size() <= longest) return visible_line(utf8);
  U8_SET_CP_START(reinterpret_cast<const std::uint8_t*>(utf8.data()), 0, end);
  return visible_line(utf8.substr(0, static_cast<std::size_t>(end))) + "...";
}

}  // namespace

static_assert(std::numeric_limits<long double>::digits >= std::numeric_limits<std::uint64_t>::digits);

bool Filter::Term::holds(const Value& value) const {
  const auto has_its_type = [&](const Value& wanted) { return wanted.index() == value.index(); };
  if (std::none_of(values.begin(), values.end(), has_its_type)) return false;
  const bool is_one_of_them = std::find(values.begin(), values.end(), value) != values.end();
  switch (op) {
    case Op::less:
      return value < values[0];
    case Op::less_equal:
      return value <= values[0];
    case Op::greater:
      return value > values[0];
    case Op::greater_equal:
      return value >= values[0];
    case Op::equal:
    case Op::in:
      return is_one_of_them;
    case Op::not_equal:
      return !is_one_of_them;
    case Op::range:
      return values[0] <= value && value <= values[1];
  }
  return false;
}

bool Filter::Condition::holds(const std::optional<Value>& value) const {
  return value && std::all_of(terms.begin(), terms.end(), [&](const Term& term) { return term.holds(*value); });
}

// A sample's metadata, parsed. img2dataset writes bare NaN and Infinity, as Python does.
class Filter::Metadata {
 public:
  explicit Metadata(std::string_view text) : object_(json::parse(from_python_json(text), nullptr, false)) {}

  bool is_object() const { return object_.is_object(); }

  // Nothing for what is missing, null or of a type that no condition can hold for.
  std::optional<Value> find(const std::string& field) const {
    const auto found = object_.find(field);
    if (found == object_.end()) return std::nullopt;
    if (found->is_boolean()) return found->get<bool>();
    if (found->is_number()) return found->get<Number>();
    if (found->is_string()) return found->get<std::string>();
    return std::nullopt;
  }

  std::string show(const std::string& field) const {
    const auto found = object_.find(field);
    if (found == object_.end()) return "missing";
    if (found->is_structured()) return found->type_name();  // may be nested without end
    return shorten(dump_any(*found));
  }

  std::string keys() const {
    constexpr std::size_t most = 30;
    std::vector<std::string> keys;
    for (auto key = object_.begin(); key != object_.end() && keys.size() < most; ++key)
      keys.push_back(shorten(key.key()));
    if (object_.size() > most) keys.emplace_back("...");
    return fmt::format("{}", fmt::join(keys, ", "));
  }

 private:
  const json object_;
};

Filter::Filter(const std::map<std::string, std::string>& expressions, std::string section)
    : section_(std::move(section)) {
  for (const auto& [field, expression] : expressions)
    conditions_.push_back(FilterParser(section_, field, expression).parse());
}

Filter::Verdict Filter::judge(std::string_view text) const {
  if (conditions_.empty()) return Verdict::keep;
  if (text.size() > max_metadata_bytes) return Verdict::bad_json;
  const Metadata metadata(text);
  if (!metadata.is_object()) return Verdict::bad_json;
  for (const Condition& condition : conditions_) {
    if (!condition.holds(metadata.find(condition.field))) return Verdict::drop;
  }
  return Verdict::keep;
}

std::string Filter::describe(std::size_t condition) const {
  return fmt::format("{} '{}'", visible_line(conditions_[condition].field),
                     visible_line(conditions_[condition].expression));
}

Filter::Look Filter::look_at(std::string_view text) const {
  const Metadata metadata(text);
  Look look{std::vector<std::optional<std::string>>(conditions_.size()), metadata.keys()};
  for (std::size_t i = 0; i < conditions_.size(); ++i) {
    const std::string& field = conditions_[i].field;
    if (!conditions_[i].holds(metadata.find(field))) look.missed[i] = metadata.show(field);
  }
  return look;
}

}  // namespace millrace
