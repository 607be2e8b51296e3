/* Which MPI this is, as it names itself:  LIBRARY,Open MPI v4.1.4 */
#pragma once
#include <ctype.h>
#include <mpi.h>
#include <stdio.h>

/* Prints the text up to the first comma or line end, white space squeezed. */
static inline void print_library(void) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  printf("LIBRARY,");
  int space = 0;
  for (int i = 0; i < length && text[i] && text[i] != ',' && text[i] != '\n'; i++) {
    if (isspace((unsigned char)text[i])) {
      space = 1;
      continue;
    }
    if (space)
      putchar(' ');
    space = 0;
    putchar(text[i]);
  }
  printf("\n");
}
