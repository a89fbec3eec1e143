"""What users ask: the beginnings from which a corpus of the target's own chats grows.

A third of the chats is asked in full (a form filled with a topic or task), a third begins as people begin and is
finished by the target, the rest is the target's from the first word. The prompts that a draft is measured on are not
here, nor are their topics: test_distill.py looks.
"""

from __future__ import annotations

import random

TOPICS = """photosynthesis|the water cycle|black holes|gravity|the moon's phases|earthquakes|volcanoes|plate tectonics
evolution|DNA|the immune system|vaccines|antibiotics|the human heart|how lungs work|digestion|memory|dreams|the brain
electricity|magnetism|batteries|solar panels|wind power|nuclear energy|climate change|the greenhouse effect|ozone
the internet|Wi-Fi|GPS|search engines|cryptography|passwords|machine learning|neural networks|databases|compilers
operating systems|cloud computing|blockchain|smartphones|3D printing|robots|self-driving cars|satellites|telescopes
microscopes|the periodic table|atoms|chemical bonds|acids and bases|rust|fermentation|yeast|bread baking|coffee|tea
chocolate|cheese|pasta|sushi|vegetarian cooking|meal planning|spices|soup|salads|barbecue|cake decorating|cookies
gardening|houseplants|composting|bees|butterflies|ants|spiders|sharks|whales|penguins|elephants|wolves|cats|dogs
horses|parrots|owls|frogs|snakes|dinosaurs|fossils|rainforests|deserts|coral reefs|rivers|glaciers|mountains|islands
ancient Egypt|the Roman Empire|ancient Greece|the Middle Ages|the Renaissance|the Industrial Revolution|World War I
World War II|the Cold War|the French Revolution|the American Civil War|the Silk Road|the Vikings|the printing press
democracy|the United Nations|human rights|taxes|interest rates|supply and demand|the stock market|budgeting|saving money
investing|mortgages|insurance|retirement|starting a business|marketing|customer service|negotiation|leadership|teamwork
time management|productivity|procrastination|public speaking|writing emails|a cover letter|a resume|networking
remote work|career change|job applications|asking for a raise|work-life balance|burnout|stress|anxiety|meditation|yoga
running|weight lifting|swimming|cycling|hiking|camping|soccer|basketball|tennis|chess|board games|video games
learning a language|learning to play the guitar|the piano|singing|painting|drawing|photography|pottery|knitting|sewing
origami|writing a novel|poetry|storytelling|reading more books|movies|theater|jazz|classical music|hip hop|opera
Shakespeare|Einstein|Marie Curie|Isaac Newton|Leonardo da Vinci|Mozart|Beethoven|Gandhi|Martin Luther King|Cleopatra
Paris|Tokyo|New York|London|Rome|Egypt|Japan|India|Brazil|Kenya|Iceland|Australia|Canada|Mexico|Italy|Spain|China
traveling on a budget|packing a suitcase|a road trip|flying with children|jet lag|learning to drive|bicycles|trains
electric cars|airplanes|ships|bridges|skyscrapers|houses|cleaning the kitchen|doing laundry|decluttering|interior design
making friends|dating|marriage|parenting|newborn babies|teenagers|siblings|grandparents|neighbors|roommates|pets
apologizing|forgiveness|gratitude|happiness|motivation|confidence|shyness|habits|new year's resolutions|hobbies
recycling|plastic pollution|saving water|saving energy|endangered species|forests|organic farming|nutrition|vitamins
protein|sugar|dehydration|headaches|the common cold|allergies|back pain|eyesight|dental care|first aid|sunburn
fractions|percentages|probability|statistics|the Pythagorean theorem|prime numbers|algebra|calculus|geometry|pi|infinity
philosophy|ethics|logic|psychology|sociology|economics|law|religion|Buddhism|mythology|Greek gods|fairy tales|dragons
weddings|holidays|Christmas|Halloween|Thanksgiving|Easter|gifts|a picnic|a dinner party|a family reunion|moving house
studying for exams|taking notes|homework|college|high school|kindergarten|teachers|libraries|museums|science fairs
the sun|the planets|Mars|Jupiter|stars|galaxies|the Big Bang|space travel|astronauts|comets|tides|clouds|snow|hurricanes
lightning|fog|seasons|time zones|calendars|clocks|money|gold|diamonds|glass|paper|plastic|steel|concrete|cotton|soap
toys|LEGO|puzzles|magic tricks|jokes|riddles|card games|emojis|social media|online privacy|email scams|fake news"""

TASKS = """reverses a string|sorts a list of numbers|finds the largest number in a list|counts the vowels in a string
computes the factorial of a number|checks whether a number is prime|adds two numbers|merges two sorted lists
computes the average of a list|counts how often each word occurs in a text|converts Celsius to Fahrenheit
finds the second largest element of a list|flattens a nested list|checks whether two strings are anagrams
computes the greatest common divisor|generates a random password|implements binary search|implements bubble sort
implements quicksort|implements a stack|implements a queue|implements a linked list|implements a binary tree
reads a text file and counts its lines|writes a list to a file|parses a JSON string|sends an HTTP request
downloads a web page|validates an email address|formats a date|measures how long a function takes|prints a triangle
prints a multiplication table|sums the digits of a number|converts a number to binary|capitalizes every word
removes punctuation from a string|finds common elements of two lists|rotates a list|transposes a matrix
multiplies two matrices|computes the area of a circle|simulates rolling a die|shuffles a deck of cards
plays rock, paper, scissors|plays guess the number|plays tic-tac-toe|models a bank account|models a car
models a shopping cart|models a student with grades|stores contacts in a dictionary|inverts a dictionary
sorts a dictionary by value|filters even numbers|squares every number in a list|finds the longest word in a sentence
counts characters in a string|splits a string on commas|checks whether a year is in the 21st century
retries a function on failure|caches results of a function|logs messages to a file|computes compound interest
converts Roman numerals to integers|solves a quadratic equation|computes the distance between two points
draws a line chart|renames files in a folder|creates a small web server|connects to a database|schedules a task"""

LANGUAGES = [
    "Python",
    "Python",
    "Python",
    "Python",
    "JavaScript",
    "Java",
    "C++",
    "C",
    "Go",
    "Rust",
    "Bash",
    "TypeScript",
]

FORMS = {
    "chat": """I want to learn more about {}. Where do I start?
I have been thinking about {} lately. What do you think?|I am having trouble with {}. Can you help?
Any advice about {}?|What do you like most about {}?|Let's talk about {}.
My sister loves {}. What could I give her?|I feel overwhelmed by {}. What should I do?|Can you help me with {}?
Do you have a recommendation about {}?|I need to talk to my boss about {}. How do I begin?
Hi! I have a question about {}.|My son asked me about {} and I did not know what to say.
Is it too late for me to get into {}?|What is new in {}?
Hello, how are you? Tell me something interesting about {}.|I am bored. Tell me about {}.
Should I worry about {}?""",
    "explanation": """Explain {}.|Explain {} in simple terms.|What is {}?|Tell me about {}.|How does {} work?
Explain {} to a child.|Why is {} important?|What are the main ideas behind {}?|What is the history of {}?
Describe {} in one paragraph.|What causes {}?|What are the advantages and disadvantages of {}?
Give me a short introduction to {}.|What should everyone know about {}?
What is the difference between {} and {}?|Compare {} and {}.|How did {} change the world?
Summarize what is known about {}.""",
    "code": """Write a {lang} function that {task}.|Write a {lang} program that {task}.
Show me {lang} code that {task}.|How do I write a {lang} function that {task}?
Write a short {lang} script that {task}, with comments.|I need a {lang} class that {task}.
Can you write {lang} code that {task}? Explain it step by step.|Give me an example of {lang} code that {task}.
Write a function in {lang} that {task} and test it.|Write a SQL query about {}.|Create an HTML page about {}.
Fix my {lang} code: it {task}, but it fails on empty input.""",
    "list": """List {n} facts about {}.|Give me {n} tips about {}.|What are {n} things to know about {}?
List the most important things about {}.|Give me {n} ideas that have to do with {}.|Name {n} books about {}.
Make a list of {n} questions about {}.|List {n} reasons why people like {}.|Write a checklist for {}.
What are the steps of {}?|Give me {n} examples of {}.|List {n} common mistakes in {}.
Name {n} words that describe {}.|Write down {n} pros and cons of {}.|Suggest {n} activities about {}.
Give me a plan of {n} steps for {}.""",
    "creative": """Write a short story about {}.|Write a poem about {}.|Write a haiku about {}.
Write a dialogue about {}.|Write a limerick about {}.|Write a slogan for {}.
Write the opening of a novel about {}.|Invent a character who loves {}.|Write a letter to a friend about {}.
Write an email to a colleague about {}.|Write a blog post about {}.|Write a speech about {}.
Write a product description for {}.""",
    "rewrite": """Rewrite this sentence more politely: I do not care about {}.
Summarize in one sentence: {} and {} have more in common than people think.
Give this text a title: Many people are interested in {}, but few know where it began.
Translate into French: I like {}.|Turn this into a question: People enjoy {}.
Make this shorter: If you ask me, {} is one of the most interesting things that there are.
Correct the grammar: he don't knows nothing about {}.
Is this sentence positive or negative? I really enjoyed {}.
Rename this file so that the name is clear: notes about {} final2.txt
Which of these does not belong: {}, {}, {}?""",
}  # fmt: skip

# Written by the user's hand, finished by the target at its own whim.
OPENINGS = """Explain|Explain how|Explain why|What is|What are|What is the difference between|Why do|Why is
How does|How do I|How can I|How to|Can you|Can you help me|Could you explain|Tell me|Tell me about|Describe
Give me|Give me five|Give me ten|List|List five|List ten|List the|Name three|Name five|What are some|Write a
Write a short|Write a poem|Write a story|Write a Python function|Write a Python function that
Write a Python program|Write a Python script|Write code|Write a function|Write a JavaScript function
Write a SQL query|Write a Java program|Write a C++|Show me how to|Implement|Create a|Create a list|Make a list
Suggest|Recommend|I need|I need help|I want to|I have|I am|I'm|I feel|I just|My|My friend|My boss|My mother
Is it|Is there|Are there|Do you|Should I|Who|Who was|When|Where|Which|Hello|Hi|Hey|Hi there|Please|Summarize
Rewrite|Translate|Compare|Help me|Let's|Imagine|Suppose|Solve|Calculate|Define|In Python,|How would you
What should I|What can I|What would|What happens|What do you think|Design|Plan|Generate|Convert|Find|Teach me
Advise me"""

_OPENINGS = OPENINGS.replace("\n", "|").split("|")
_TOPICS = TOPICS.replace("\n", "|").split("|")
_TASKS = TASKS.replace("\n", "|").split("|")
_FORMS = {kind: text.replace("\n", "|").split("|") for kind, text in FORMS.items()}
_NUMBERS = ("three", "four", "five", "six", "seven", "eight", "ten", "5", "10")
KINDS = tuple(_FORMS)
_WEIGHTS = {"chat": 5, "explanation": 5, "code": 6, "list": 6, "creative": 2, "rewrite": 1}


def question(rng: random.Random) -> tuple[str, str]:
    """A whole user turn, and its kind (of `KINDS`)."""
    kind = rng.choices(KINDS, [_WEIGHTS[k] for k in KINDS])[0]
    form = rng.choice(_FORMS[kind])
    words = dict(
        lang=rng.choice(LANGUAGES),
        task=rng.choice(_TASKS),
        n=rng.choice(_NUMBERS),
    )
    return form.format(*rng.sample(_TOPICS, 3), **words), kind


def opening(rng: random.Random) -> str:
    """How a user turn begins, for the target to finish."""
    return rng.choice(_OPENINGS)
