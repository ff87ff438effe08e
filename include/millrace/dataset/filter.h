#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace millrace {

// Conditions on a sample's metadata: EXPR = TERM {and TERM}; TERM = OP VALUE | in [VALUE, ...] | A..B | VALUE;
// OP = <= >= < > == !=; VALUE = number, text (quoted or bare), true, false. Bare text is letters and digits of any
// script and _ . : / + -, without two dots in a row; everything else stands in quotes, 'so' or "so".
class Filter {
 public:
  // Field -> expression, all of which must hold. Error(usage) naming `SECTION.filters.FIELD`.
  explicit Filter(const std::map<std::string, std::string>& expressions, std::string section = "data.train");

  enum class Verdict { keep, drop, bad_json };
  // `text`: a JSON object; NaN and Infinity are tolerated. A field that is missing, null, NaN or of another
  // type drops the sample; text that is no JSON object (or is empty) is bad_json.
  Verdict judge(std::string_view text) const;

  // A row of metadata for a person: of each condition the value that it is not met by (nothing where it is met), and
  // the keys that are there.
  struct Look {
    std::vector<std::optional<std::string>> missed;
    std::string keys;
  };
  // `text` is a JSON object.
  Look look_at(std::string_view text) const;
  // As the user wrote it: width '>=512'.
  std::string describe(std::size_t condition) const;
  std::size_t size() const { return conditions_.size(); }
  bool empty() const { return conditions_.empty(); }
  // Whether both are the same conditions, however they are spelled.
  bool is_same_as(const Filter& other) const { return conditions_ == other.conditions_; }
  const std::string& section() const { return section_; }  // that it belongs to, for messages

 private:
  using Number = long double;  // holds every whole number of 64 bits and every double
  using Value = std::variant<bool, Number, std::string>;
  enum class Op { less, less_equal, greater, greater_equal, equal, not_equal, in, range };
  struct Term {
    Op op = Op::equal;
    std::vector<Value> values;
    bool holds(const Value& value) const;
    bool operator==(const Term&) const = default;
  };
  struct Condition {
    std::string field, expression;
    std::vector<Term> terms;
    bool holds(const std::optional<Value>& value) const;
    bool operator==(const Condition& other) const { return field == other.field && terms == other.terms; }
  };
  class Metadata;
  friend class FilterParser;
  std::string section_;
  std::vector<Condition> conditions_;
};

}  // namespace millrace
