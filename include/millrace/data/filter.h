#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace millrace {

// Conditions on a sample's metadata: EXPR = TERM {and TERM}; TERM = OP VALUE | in [VALUE, ...] | A..B | VALUE;
// OP = <= >= < > == !=; VALUE = number, text (quoted or bare), true, false.
class Filter {
 public:
  // Field -> expression, all of which must hold. Error(usage) naming `data.train.filters.FIELD`.
  explicit Filter(const std::map<std::string, std::string>& expressions);

  enum class Verdict { keep, drop, bad_json };
  // `json`: text of a JSON object; NaN and Infinity are tolerated. A field that is missing, null, NaN or of another
  // type drops the sample; text that is no JSON object (or is empty) is bad_json.
  Verdict judge(std::string_view json) const;
  // Why a sample with these metadata is dropped, for a person, with the keys it has.
  std::string explain(std::string_view json) const;
  bool empty() const { return conditions_.empty(); }

 private:
  using Value = std::variant<bool, double, std::string>;
  enum class Op { less, less_equal, greater, greater_equal, equal, not_equal, in, range };
  struct Term {
    Op op = Op::equal;
    std::vector<Value> values;
    bool holds(const Value& value) const;
  };
  struct Condition {
    std::string field, expression;
    std::vector<Term> terms;
    bool holds(const std::optional<Value>& value) const;
  };
  class Metadata;
  friend class FilterParser;
  std::vector<Condition> conditions_;
};

}  // namespace millrace
