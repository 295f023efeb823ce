/* What a chip has that runs programs. */
#pragma once

#define MYCHIP_OPTIONAL_FUNCTIONS /* NULL: Outboard does without */
