#pragma once

namespace millrace {

// What `millrace --licenses` prints: every library that a program of this build loads, with its licence.
void print_licenses();

}  // namespace millrace
