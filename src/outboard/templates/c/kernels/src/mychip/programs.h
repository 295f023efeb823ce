/* What a chip has that runs programs. */
#pragma once

/* Optional functions of programs.c for the table in driver.c, such as .launch_cost = launch_cost: here none. */
#define MYCHIP_OPTIONAL_FUNCTIONS
