import os
import sys

from . import program

os.execv(program(), ["gputop", *sys.argv[1:]])
