/* Errors, texts and the clock. */

#include "mailbox.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int32_t refuse(CampanileError *error, int32_t status, const char *what, const char *reason, ...)
{
    va_list arguments;
    va_start(arguments, reason);
    if (what != NULL)
        snprintf(error->what, sizeof error->what, "%s", what);
    vsnprintf(error->reason, sizeof error->reason, reason, arguments);
    va_end(arguments);
    return status;
}

void write_text(const CampanileSink *sink, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sink->write(sink->ctx, text, strlen(text));
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t deadline_after(uint64_t start, uint64_t timeout_ns)
{
    return start + timeout_ns < start ? UINT64_MAX : start + timeout_ns;
}
