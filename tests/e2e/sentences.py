# SPDX-License-Identifier: Apache-2.0
"""50 real sentences (one is a paragraph), of 1 to 187 tokens. All are in the public domain: the
Declaration of Independence, the Gettysburg Address, Austen, Carroll, Dickens, Franklin, Melville,
Thoreau, proverbs.
"""

SENTENCES = (
    "Yes",
    "Stop!",
    "Call me Ishmael.",
    "Time flies.",
    "Still waters run deep.",
    "Curiouser and curiouser!",
    "Who in the world am I?",
    "Off with her head!",
    "A watched pot never boils.",
    "All that glitters is not gold.",
    "The early bird catches the worm.",
    "Jesus wept.",
    "A stitch in time saves nine.",
    "We are met on a great battle-field of that war.",
    "It is altogether fitting and proper that we should do this.",
    "Fools rush in where angels fear to tread.",
    "The mass of men lead lives of quiet desperation.",
    "Our life is frittered away by detail.",
    "Simplify, simplify.",
    "What is the use of a book, thought Alice, without pictures or conversation?",
    "Begin at the beginning, the King said gravely, and go on till you come to the end: then stop.",
    "We're all mad here.",
    "It was much pleasanter at home, thought poor Alice, when one wasn't always growing larger "
    "and smaller, and being ordered about by mice and rabbits.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune,"
    " must be in want of a wife.",
    "However little known the feelings or views of such a man may be on his first entering a "
    "neighbourhood, this truth is so well fixed in the minds of the surrounding families, that "
    "he is considered as the rightful property of some one or other of their daughters.",
    "My dear Mr. Bennet, said his lady to him one day, have you heard that Netherfield Park is "
    "let at last?",
    "Now we are engaged in a great civil war, testing whether that nation, or any nation so "
    "conceived and so dedicated, can long endure.",
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, "
    "conceived in Liberty, and dedicated to the proposition that all men are created equal.",
    "We have come to dedicate a portion of that field, as a final resting place for those who "
    "here gave their lives that that nation might live.",
    "But, in a larger sense, we can not dedicate, we can not consecrate, we can not hallow this"
    " ground.",
    "The brave men, living and dead, who struggled here, have consecrated it, far above our "
    "poor power to add or detract.",
    "The world will little note, nor long remember what we say here, but it can never forget "
    "what they did here.",
    "It is for us the living, rather, to be dedicated here to the unfinished work which they "
    "who fought here have thus far so nobly advanced.",
    "It is rather for us to be here dedicated to the great task remaining before us, that from "
    "these honored dead we take increased devotion to that cause for which they gave the last "
    "full measure of devotion, that we here highly resolve that these dead shall not have died "
    "in vain, that this nation, under God, shall have a new birth of freedom, and that "
    "government of the people, by the people, for the people, shall not perish from the earth.",
    "Some years ago, never mind how long precisely, having little or no money in my purse, and "
    "nothing particular to interest me on shore, I thought I would sail about a little and see "
    "the watery part of the world.",
    "It is a way I have of driving off the spleen and regulating the circulation.",
    "Whenever I find myself growing grim about the mouth; whenever it is a damp, drizzly "
    "November in my soul; whenever I find myself involuntarily pausing before coffin "
    "warehouses, and bringing up the rear of every funeral I meet; and especially whenever my "
    "hypos get such an upper hand of me, that it requires a strong moral principle to prevent "
    "me from deliberately stepping into the street, and methodically knocking people's hats "
    "off, then, I account it high time to get to sea as soon as I can.",
    "With a philosophical flourish Cato throws himself upon his sword; I quietly take to the ship.",
    "There is nothing surprising in this.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the "
    "age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was "
    "the season of Light, it was the season of Darkness, it was the spring of hope, it was the "
    "winter of despair, we had everything before us, we had nothing before us, we were all "
    "going direct to Heaven, we were all going direct the other way.",
    "Marley was dead: to begin with.",
    "There is no doubt whatever about that.",
    "I went to the woods because I wished to live deliberately, to front only the essential "
    "facts of life, and see if I could not learn what it had to teach, and not, when I came to "
    "die, discover that I had not lived.",
    "When in the Course of human events, it becomes necessary for one people to dissolve the "
    "political bands which have connected them with another, and to assume among the powers of "
    "the earth, the separate and equal station to which the Laws of Nature and of Nature's God "
    "entitle them, a decent respect to the opinions of mankind requires that they should "
    "declare the causes which impel them to the separation.",
    "We hold these truths to be self-evident, that all men are created equal, that they are "
    "endowed by their Creator with certain unalienable Rights, that among these are Life, "
    "Liberty and the pursuit of Happiness.",
    "That to secure these rights, Governments are instituted among Men, deriving their just "
    "powers from the consent of the governed.",
    "Prudence, indeed, will dictate that Governments long established should not be changed for"
    " light and transient causes; and accordingly all experience hath shewn, that mankind are "
    "more disposed to suffer, while evils are sufferable, than to right themselves by "
    "abolishing the forms to which they are accustomed.",
    "But when a long train of abuses and usurpations, pursuing invariably the same Object "
    "evinces a design to reduce them under absolute Despotism, it is their right, it is their "
    "duty, to throw off such Government, and to provide new Guards for their future security.",
    "We, therefore, the Representatives of the united States of America, in General Congress, "
    "Assembled, appealing to the Supreme Judge of the world for the rectitude of our "
    "intentions, do, in the Name, and by Authority of the good People of these Colonies, "
    "solemnly publish and declare, That these United Colonies are, and of Right ought to be "
    "Free and Independent States; that they are Absolved from all Allegiance to the British "
    "Crown, and that all political connection between them and the State of Great Britain, is "
    "and ought to be totally dissolved; and that as Free and Independent States, they have full"
    " Power to levy War, conclude Peace, contract Alliances, establish Commerce, and to do all "
    "other Acts and Things which Independent States may of right do. And for the support of "
    "this Declaration, with a firm reliance on the protection of divine Providence, we mutually"
    " pledge to each other our Lives, our Fortunes and our sacred Honor.",
    "We must, indeed, all hang together, or most assuredly we shall all hang separately.",
)
