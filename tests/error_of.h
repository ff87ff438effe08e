#pragma once
#include <gtest/gtest.h>

#include "millrace/core/error.h"

namespace millrace::test {

// Runs `call`, which must throw an Error; returns it for a look at its text.
template <class Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error(Exit::done, "");
}

}  // namespace millrace::test
